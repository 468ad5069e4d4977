"""Heads that training begins with, in every layout: what they accept in training is what they accept in the loop."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.checkpoints import dflash as heads
from tests.checkpoints import eagle3 as chains
from tests.checkpoints.qwen import QWEN25, QwenKind, adapter
from tests.drafting.test_blocks import KINDS
from tests.drafting.test_speculators_heads import KINDS as SPECULATORS
from tests.tiers import full_but
from tests.training.learned import captioned, captioner, states_of
from vidspec.errors import ModelError
from vidspec.models import dflash, eagle3
from vidspec.models.placement import resolve_placement
from vidspec.training.chain_head import TrainedChain
from vidspec.training.head import SharedWeights, TrainedBlocks
from vidspec.training.steps import HeadTraining, TrainingLimits

PLACE = resolve_placement("cpu", "float32")
KIND = QwenKind(QWEN25, tied=False)
CHAIN_KEYS = {"draft.gamma": 7, "draft.options": {"visual": "none"}}
LAYOUTS = [*KINDS, *(f"speculators {name}" for name in SPECULATORS)]


@pytest.fixture(scope="module")
def small():
    target = adapter(KIND)
    return target, captioned(target, 3)


def saved(folder, layout, words):
    """A random head in a layout."""
    name = layout.removeprefix("speculators ")
    if layout != name:
        model, more, markov, drafted = SPECULATORS[name]
        weights = heads.tensors() | (heads.dspark_tensors(words, markov, drafted=drafted) if markov else {})
        return heads.save(folder, heads.speculators_config(KIND, model, **more), weights)
    more = KINDS[name][0]
    weights = heads.tensors(second=name == "convolutions", vocabulary=words if name == "selector" else 0)
    return heads.save(folder, heads.config(KIND, **more), weights)


@pytest.mark.sample(full=6)
@pytest.mark.parametrize("layout", full_but(["speculators fewer ids"], LAYOUTS))
def test_a_head_of_any_layout_learns_and_stays_in_its_layout(small, tmp_path, layout):
    target, clips = small
    folder = saved(tmp_path / "begun", layout, len(target.model.lm_head.weight))
    head = TrainedBlocks.read(str(folder), target, SharedWeights.of(target))
    keys = [clip.key for clip in clips]
    file = states_of(target, head, clips, tmp_path / "states")
    run = HeadTraining(head, file, keys, keys, tmp_path, limits=TrainingLimits(steps=60))
    before = run.validate()
    assert [*run.run()][-1].tau > before
    begun, learned = json.loads((folder / "config.json").read_text()), run.head_folder
    assert json.loads((learned / "config.json").read_text()) == begun | {"dtype": "float32"}
    tensors, first = load_file(learned / "model.safetensors"), load_file(folder / "model.safetensors")
    assert {name: tensor.shape for name, tensor in tensors.items()} == {name: one.shape for name, one in first.items()}
    assert not torch.equal(tensors["fc.weight"], first["fc.weight"])
    loaded = dflash.load_block_head(str(learned), target, PLACE)
    drafting = captioner(target, "sparrow", loaded, **{"draft.gamma": loaded.most})
    lengths = []
    for clip in clips:
        caption = drafting.caption(clip.request.path, clip=clip.request.clip)
        assert tuple(caption.token_ids) == clip.tokens
        lengths += caption.counters["accepted_lengths"]
    best = run.state.best
    assert 1 + sum(lengths) / len(lengths) == pytest.approx(best, abs=0.1)


def test_a_head_of_another_target_is_refused(small, tmp_path):
    target, _ = small
    folder = saved(tmp_path, "causal", len(target.model.lm_head.weight))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 32}))
    with pytest.raises(ModelError, match=r"is 32 wide, and .* is 64 wide"):
        TrainedBlocks.read(str(folder), target, SharedWeights.of(target))


#: Configs of EAGLE-3 heads, and tensors that they have beside the others.
CHAINS = {
    "plain": ({}, {}),
    "norms": ({"norm_before_fc": True, "norm_output": True}, {"input_norm.weight": torch.ones(3 * 64)}),
    "window": ({"sliding_window": 24, "layer_types": ["sliding_attention"], "use_sliding_window": True}, {}),
    "speculators": ({"speculators_model_type": "eagle3", "norm_before_residual": True}, {}),
    "own embedding": ({}, {"embed_tokens.weight": None}),
}


@pytest.mark.parametrize(
    ("layout", "steps", "tau"), full_but([("plain", 60, 1.2)], [(name, 300, 6) for name in CHAINS])
)
def test_an_eagle3_head_learns_captions_by_heart_and_stays_in_its_layout(small, tmp_path, layout, steps, tau):
    """What it accepts in training is what it accepts in the loop; captions are those of plain decoding."""
    target, clips = small
    more, tensors = CHAINS[layout]
    weights = chains.tensors(KIND)
    tensors = {name: torch.randn(len(weights["t2d"]), 64) if one is None else one for name, one in tensors.items()}
    used = torch.tensor(sorted({token for clip in clips for token in clip.tokens}))
    ids = torch.cat([used, torch.tensor([one for one in range(target.vocabulary) if one not in used])])[:200].sort()
    weights |= {"d2t": ids.values - torch.arange(200), **tensors}
    folder = chains.save(tmp_path / "begun", chains.config(KIND, **more), weights)
    head = TrainedChain(str(folder), target, SharedWeights.of(target))
    keys = [clip.key for clip in clips]
    run = HeadTraining(
        head, states_of(target, head, clips, tmp_path), keys, keys, tmp_path, limits=TrainingLimits(steps=steps)
    )
    before = run.validate()
    best = [*run.run()][-1].best
    assert before < 1.1 and best > tau
    begun, learned = json.loads((folder / "config.json").read_text()), run.head_folder
    assert json.loads((learned / "config.json").read_text()) == begun | {"dtype": "float32"}
    written, first = load_file(learned / "model.safetensors"), load_file(folder / "model.safetensors")
    assert {name: tensor.shape for name, tensor in written.items()} == {name: one.shape for name, one in first.items()}
    assert all(torch.equal(written[name], first[name]) for name in first if name in head.fixed)
    drafting = captioner(target, "eagle3", eagle3.load_eagle3(str(learned), target, PLACE), **CHAIN_KEYS)
    lengths = []
    for clip in clips:
        caption = drafting.caption(clip.request.path, clip=clip.request.clip)
        assert tuple(caption.token_ids) == clip.tokens
        lengths += caption.counters["accepted_lengths"]
    assert 1 + sum(lengths) / len(lengths) == pytest.approx(best, abs=0.1)
