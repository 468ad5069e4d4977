"""Stop strings: every method ends a text at the token that completes one, and the string is no part of it."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.decoding.workers.pairs import CLIPS, named_requests
from tests.ready_clips import ReadyClips
from tests.tiers import full_but, in_turn
from vidspec.captioner import Captioner
from vidspec.config.sections import GenerateSection
from vidspec.decoding.limits import StoppingRules
from vidspec.events.events import Finished
from vidspec.models.detokenizer import StopStrings, cut_at_stop

#: Inside a word, over several tokens, and one that no text holds.
STOP = ("ject is a sm", "ject is a large y", "elephant")
SETTINGS = {"generate.max_new_tokens": 60, "video.frames": 8, "models.threads": 1, "models.pair": "embedded"}
PROFILES = ["vanilla-sd", "specvlm", "parallelvlm", "ngram"]


class Pieces:
    """A tokenizer whose tokens are the pieces of a list."""

    def __init__(self, pieces):
        self.pieces = pieces

    def decode(self, token_ids, **options):
        return "".join(self.pieces[token] for token in token_ids)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_a_text_ends_with_the_token_that_completes_a_string(token_ids, strings):
    tokenizer = Pieces(["a", "b", "ab", "ba", "aab"])
    limits = StoppingRules(99, stopped=StopStrings(tokenizer, strings).has_stop)
    texts = [tokenizer.decode(token_ids[: n + 1]) for n in range(len(token_ids))]
    first = next((n for n, text in enumerate(texts) if any(one in text for one in strings)), None)
    kept, over = limits.cut(tuple(token_ids), [])
    assert over is (first is not None)
    assert list(kept) == (token_ids if first is None else token_ids[: first + 1])
    cut = cut_at_stop(texts[-1] if first is None else texts[first], strings)
    assert texts[-1].startswith(cut) and not any(one in cut for one in strings)
    assert over is (limits.end_reason(kept) == "stop")


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=3))
def test_an_end_that_may_become_a_string_is_cut(text, strings):
    whole = [at for one in strings if (at := text.find(one)) >= 0]
    begun = [len(text) - n for one in strings for n in range(1, len(one)) if text.endswith(one[:n])]
    assert cut_at_stop(text, strings, unfinished=True) == text[: min(whole + begun, default=None)]


def test_work_for_a_long_string_grows_with_the_text_only():
    class Counted(str):
        used = 0

        def startswith(self, *arguments):
            self.used += 1
            return super().startswith(*arguments)

        def __getitem__(self, key):
            self.used += 1
            return super().__getitem__(key)

    stop = Counted("x" * 5000)
    assert cut_at_stop("a red circle", [stop], unfinished=True) == "a red circle"
    assert cut_at_stop("a red box", [stop], unfinished=True) == "a red bo"
    assert stop.used < 9


def test_a_string_has_at_most_1024_characters():
    assert GenerateSection(stop=["x" * 1024]).stop == ("x" * 1024,)
    with pytest.raises(ValidationError, match="at most 1024 characters"):
        GenerateSection(stop=["x" * 1025])


@cache
def captions(profile, batch, stop):
    with Captioner.from_profile(profile, overrides={**SETTINGS, "generate.stop": list(stop)}) as captioner:
        found = {
            key: event.caption
            for key, event in captioner.client.serve(ReadyClips(named_requests(captioner, sorted(CLIPS))), batch=batch)
            if isinstance(event, Finished)
        }
    assert len(found) == 4
    return found


EVERY = in_turn([(profile, batch) for batch in (1, 4) for profile in PROFILES], 3)


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.usefixtures("forked_drafts")
@pytest.mark.parametrize(("profile", "batch"), full_but([("specvlm", 1), ("parallelvlm", 4)], EVERY))
def test_every_method_gives_plain_decodings_text_up_to_the_string(profile, batch):
    whole = captions("ar", 1, ())
    for clip, caption in captions(profile, batch, STOP).items():
        assert caption.caption == cut_at_stop(whole[clip].caption, STOP).strip() != whole[clip].caption
        assert caption.ended == "stop"
        assert caption.token_ids == whole[clip].token_ids[: len(caption.token_ids)]
        assert len(caption.token_ids) < len(whole[clip].token_ids)
