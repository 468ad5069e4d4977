"""Heads that training made, under every lossless profile that drafts with them, alone and among other clips."""

import pytest

from tests.checkpoints import checkpoint
from tests.checkpoints import eagle3 as heads
from tests.checkpoints.qwen import QWEN25, QwenKind
from tests.checkpoints.readable import SIZE, tokenizer
from tests.packaged import packaged
from tests.ready_clips import serve_captions
from vidspec.acceptance.base import rules
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.decoding.captioner_models import load_head
from vidspec.embedded.samples import shipped
from vidspec.models import loading
from vidspec.models.placement import resolve_placement
from vidspec.models.request import CaptionRequest
from vidspec.training.train import train

pytestmark = pytest.mark.full

PLACE = resolve_placement("cpu", "float32")
CLIP, COUNT = str(shipped()[0]), 16
PROFILES = {
    name: profile.draft.named_head
    for name, profile in packaged().items()
    if profile.draft.named_head and rules.get(profile.accept.rule).lossless
}


@pytest.fixture(scope="module")
def trained(caption_lines, tmp_path_factory):
    """The target, a head of each kind that training made, and the captions of plain decoding."""
    folder, words = tmp_path_factory.mktemp("heads"), len(tokenizer())
    config = heads.config(QwenKind(QWEN25), hidden_size=SIZE.hidden, vocab_size=words + 5, rope_scaling=None)
    begun = {"dflash": None, "eagle3": str(heads.save(folder / "begun", config, heads.layout(SIZE.hidden, words, 5)))}
    target = loading.load_model(str(checkpoint("readable")), PLACE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("platformdirs.user_cache_dir", lambda name: str(folder / "cache"))
        for kind, begin in begun.items():
            for _ in train(caption_lines, begin=begin, steps=60, out=folder / kind):
                pass
    loaded = {kind: load_head(kind, str(folder / kind), target, PLACE) for kind in begun}
    return target, loaded, {key: one.token_ids for key, one in captions(target, "ar", None, 1).items()}


def captions(target, name, head, batch):
    keys = {"models.target": str(checkpoint("readable")), "generate.max_new_tokens": 40, "generate.stop_loops": False}
    keys |= {"video.frames": 1} | ({} if head is None else {"models.draft": head.name})
    captioner = Captioner(profiles.load(name, keys, env={}), target, None, head=head)
    frames = captioner.client.inputs.read(CLIP)
    requests = [CaptionRequest(CLIP, frames, f"Describe {row}.", key=str(row)) for row in range(COUNT)]
    return serve_captions(captioner, requests, batch)


def test_profiles_of_both_kinds_of_heads_are_met():
    assert {"dflash", "sparrow", "eagle3", "hybrid-sparrow", "hybrid-eagle3"} <= {*PROFILES}


@pytest.mark.sample(full=9)
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("name", [name for name, kind in PROFILES.items() if kind in ("dflash", "eagle3")])
def test_tokens_are_those_of_plain_decoding(trained, name, batch):
    target, loaded, plain = trained
    found = captions(target, name, loaded[PROFILES[name]], batch)
    assert {key: one.token_ids for key, one in found.items()} == plain
    assert sum(one.counters["drafted"] for one in found.values()) > 0
