"""The study of drafts of a lone target: its figures, its turns, and that another text is an error."""

from types import SimpleNamespace

import pytest

from research.studies import real_language
from research.studies.real_language import (
    CANDIDATES,
    HEAD_PROFILES,
    TREES,
    VARIANTS,
    Ground,
    markdown,
    measure,
    other_profiles,
    row,
)
from vidspec.config import labels, profiles
from vidspec.errors import VidspecError


def written(token_ids, passes, drafts=0, drafted=0, accepted=0):
    counters = {"emitted": len(token_ids), "target_forwards": passes, "draft_forwards": drafts}
    counters |= {"drafted": drafted, "accepted": accepted, "accepted_lengths": [accepted]}
    return SimpleNamespace(token_ids=token_ids, counters=counters)


PLAIN = {0: written([1, 2, 3, 4], 3), 1: written([5, 6, 7], 2)}


def test_figures_are_those_of_all_captions_together():
    drafted = {0: written([1, 2, 3, 4], 1, 3, 3, 2), 1: written([5, 6, 9], 1, 2, 2, 1)}
    one = row("real", "self-int8", 8, drafted, PLAIN, 0.35)
    assert (one.tokens_per_target_pass, one.draft_passes_per_token) == (2.5, 1.0)
    assert (one.accepted, one.equal, one.clips, one.tokens_per_s) == (0.6, 1, 2, 20.0)
    plain = row("real", "ar", 8, PLAIN, PLAIN, 0.7)
    assert (plain.tokens_per_target_pass, plain.accepted, plain.equal) == (1.0, None, 2)
    text = markdown([plain, one, row("real", "ngram", 8, PLAIN, PLAIN, None)])
    assert "| 8 | `self-int8` | 2.50 | 1.00 | 60% | 1/2 | 20.0 | 2.00x |" in text
    assert text.endswith("| 8 | `ngram` | 1.00 | 0.00 | - | 2/2 | - | - |")


def test_without_times_there_are_no_columns_of_speed():
    text = markdown([row(ground, "ar", 1, PLAIN, PLAIN, None) for ground in ("real", "built-in")])
    assert "tokens/s" not in text and text.endswith("| 1 | `ar` | 1.00 | 0.00 | - | 2/2 |")
    assert text.index("### Ground: real") < text.index("### Ground: built-in")


def test_every_lossless_profile_of_a_lone_target_is_run():
    """Timed or not; heads take theirs, a second model there is none."""
    timed = (*CANDIDATES, *VARIANTS)
    run = {*timed, *TREES, *other_profiles(timed)}
    assert all(labels.load(one, {}).lossless for one in run) and {"ngram", "std", "self-parallelvlm"} <= run
    packaged = [profiles.load(info.name) for info in profiles.available() if info.source == "packaged"]
    alone = [one for one in packaged if one.lossless and not one.draft.has_model and not one.draft.has_head]
    assert {one.name for one in alone} <= run and len(alone) > 10
    assert all(labels.load(one, {}).draft.named_head == kind for kind, some in HEAD_PROFILES.items() for one in some)


class Taken:
    """Stands for models whose captioners write what ``texts`` says, and lists the turns."""

    named_head, where = None, SimpleNamespace(device=None)

    def __init__(self, **texts):
        self.texts, self.turns, self.forgotten = texts, [], []

    def captioner(self, label, settings):
        forget = SimpleNamespace(forget=lambda: self.forgotten.append(label))
        return SimpleNamespace(label=label, client=SimpleNamespace(setup=forget))

    def close(self):
        pass

    def caption(self, captioner, clips, batch):
        self.turns.append((captioner.label, tuple(clips), batch))
        return {key: self.texts.get(captioner.label, PLAIN)[key % 2] for key in clips}, 1.0


def test_timed_profiles_take_turns_and_the_others_write_one(monkeypatch):
    taken = Taken()
    monkeypatch.setattr(real_language, "caption", taken.caption)
    ground = Ground("real", taken, ("ar", "suffix"), ("ngram",), {}, (("clip", None),) * 4)
    rows = measure(ground, [1, 2], counters=False)
    first, second = (0, 1), (2, 3)
    one = [("ar", first), ("suffix", first), ("suffix", second), ("ar", second), ("ngram", first)]
    assert taken.turns == [(label, keys, batch) for batch in (1, 2) for label, keys in one]
    assert taken.forgotten == ["ar", "suffix"] * 2
    assert [(one.name, one.batch, one.equal, one.clips) for one in rows[:3]] == [
        ("ar", 1, 4, 4),
        ("suffix", 1, 4, 4),
        ("ngram", 1, 2, 2),
    ]
    assert [one.tokens_per_s for one in rows] == [7.0, 7.0, None] * 2


def test_another_text_is_an_error(monkeypatch):
    taken = Taken(suffix={0: written([1, 2, 3, 9], 3), 1: PLAIN[1]})
    ground = Ground("real", taken, ("ar", "suffix"), (), {}, (("clip", None),) * 2)
    monkeypatch.setattr(real_language, "caption", taken.caption)
    monkeypatch.setattr(real_language, "real_ground", lambda *given: ground)
    with pytest.raises(VidspecError, match=r"other token ids than plain decoding: real: suffix, real: suffix"):
        real_language.main(["--grounds", "real", "--counters"])


def test_plain_captions_of_single_clips_come_first(capsys):
    with pytest.raises(SystemExit):
        real_language.main(["--batch", "8"])
    assert "1 must be first" in capsys.readouterr().err
