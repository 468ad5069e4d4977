"""Tokens that ``generation_config.json`` bans: texts are those of ``generate``, under speculation too."""

import json
from functools import cache

import pytest
import torch
from transformers import AutoModelForImageTextToText, LogitsProcessor, LogitsProcessorList

from research.stock_inputs import stock_inputs
from tests.checkpoints import copy_checkpoint
from tests.decoding.workers.pairs import CLIPS, named_requests
from tests.model_pairs import PLACE, Pair, pair_checkpoints
from tests.ready_clips import serve_captions
from tests.tiers import full_but
from vidspec.decoding.captioner_models import notes_on
from vidspec.errors import ModelError
from vidspec.models import loading

pytestmark = pytest.mark.usefixtures("forked_drafts", "clips_read_once")

TOKENS = 40
PROFILES = [
    *("ar", "vanilla-sd", "vanilla-sd-auto", "sd-tree", "sd-adaptive-tree", "specvlm", "self-sd", "self-int8", "onsd"),
    *("suffix", "hybrid", "token-recycling", "tabed-mt", "tabed-mtcp-star", "parallelvlm", "hippo"),
]


def configure(folder, **keys):
    """Set keys of a checkpoint's generation_config.json."""
    file = folder / "generation_config.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    file.unlink(missing_ok=True)
    file.write_text(json.dumps({**known, **keys}))
    return folder


class Known(LogitsProcessor):
    """Leaves out the padding of the head."""

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def __call__(self, input_ids, scores):
        scores[:, self.vocabulary :] = -torch.inf
        return scores


class Banning(Pair):
    """A pair whose target bans the first token of its texts, the commonest, and a run of each text."""

    def __init__(self, folder):
        target, draft = pair_checkpoints("llava_onevision")
        free = Pair(target, draft, TOKENS, **{"video.frames": 4})
        self.free = {clip: free.plain(path) for clip, path in CLIPS.items()}
        free.close()
        every = [token for text in self.free.values() for token in text[1:]]
        commonest = max(sorted(set(every)), key=every.count)
        runs = [text[8:11] for text in self.free.values()]
        banned = copy_checkpoint(folder, "readable")
        firsts = sorted({text[0] for text in self.free.values()})
        self.keys = {"suppress_tokens": [commonest], "begin_suppress_tokens": firsts, "bad_words_ids": runs}
        super().__init__(configure(banned, **self.keys), draft, TOKENS, **{"video.frames": 4})
        self.stock = AutoModelForImageTextToText.from_pretrained(banned, dtype=torch.float32).eval()
        self.generated = cache(self._generated)

    @torch.inference_mode()
    def _generated(self, clip):
        captioner = self.captioner("ar")
        pixels = self.target.preprocess(captioner.client.inputs.read(CLIPS[clip]))
        prefix = self.target.prefix(self.target.encode(pixels), captioner.client.profile.generate.prompt)
        ids = self.stock.generate(
            **stock_inputs(self.target, pixels, prefix),
            max_new_tokens=TOKENS,
            do_sample=False,
            logits_processor=LogitsProcessorList([Known(self.target.vocabulary)]),
        )
        return ids[0, prefix.length :].tolist()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    made = Banning(tmp_path_factory.mktemp("banning"))
    yield made
    made.close()


USUAL = [("ar", 1), ("sd-tree", 4), ("self-int8", 4)]
EVERY = [(name, batch) for name in PROFILES for batch in (1, 4)]


@pytest.mark.parametrize(("profile", "batch"), full_but(USUAL, EVERY))
def test_texts_are_those_of_generate(pair, profile, batch):
    captioner = pair.captioner(profile)
    captions = serve_captions(captioner, named_requests(captioner, CLIPS), batch)
    for clip, caption in captions.items():
        assert list(caption.token_ids) == pair.generated(clip) != list(pair.free[clip])


def test_drawn_texts_hold_no_banned_token(pair):
    drawn = {"generate.temperature": 1.5, "generate.seed": 2}
    texts = [
        pair.captioner(name, drawn).caption(CLIPS["one-object"]).token_ids for name in ("ar", "sd-tree", "vanilla-sd")
    ]
    assert texts[0] == texts[1]
    (suppressed,), firsts = pair.keys["suppress_tokens"], pair.keys["begin_suppress_tokens"]
    assert all(suppressed not in text and text[0] not in firsts for text in texts)


@pytest.mark.parametrize(
    ("key", "value"), [("suppress_tokens", ["a"]), ("begin_suppress_tokens", ["a"]), ("bad_words_ids", [3])]
)
def test_other_values_are_refused(tmp_path, key, value):
    folder = configure(copy_checkpoint(tmp_path, "readable"), **{key: value})
    with pytest.raises(ModelError, match=key):
        loading.load_model(str(folder), PLACE)


def test_one_note_names_the_keys_that_are_not_applied(tmp_path):
    keys = {"repetition_penalty": 1.05, "min_new_tokens": 4, "num_beams": 1, "do_sample": True, "temperature": 0.5}
    target = configure(copy_checkpoint(tmp_path, "readable"), **keys)
    pair = Pair(target, target, 4)
    (line,) = notes_on(pair.captioner("vanilla-sd").client.setup)
    expected = (
        "not applied of its generation_config.json: repetition_penalty (--repetition-penalty 1.05), min_new_tokens"
    )
    assert line.endswith(expected)
    pair.close()
