"""Fused blocks of vision towers, by Triton's interpreter, give what the stock blocks give."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from torch import nn

from tests.checkpoints import glm4v, qwen, qwen2_5_omni, qwen3_omni_moe
from tests.checkpoints.qwen import QWEN2, QWEN3, QWEN25, QwenKind
from tests.tiers import full_but
from vidspec.models import fused_vision, video_language_model
from vidspec.models.fused_vision import fuse_vision_blocks
from vidspec.models.vision import WINDOWS, register_window_attention

pytest.importorskip("triton", reason="Triton, which comes with torch for GPUs, is not installed")
from tests.engine.test_block_kernels import DEVICE, KERNELS

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="the towers are on the CPU")

FAMILIES = [QWEN2, QWEN25, QWEN3, "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen2_5_omni", "qwen3_omni_moe", "glm4v"]
#: Steps, rows and columns of patches; Qwen2.5's windows are of one length, of two, and of four.
GRIDS = {"one": (2, 6, 6), "two": (1, 6, 10), "four": (1, 8, 10)}
CASES = [*((family, "one") for family in FAMILIES), (QWEN25, "two"), (QWEN25, "four")]


def stock_of(family, width=24, inner=50):
    """A stock model. Two heads of the Qwen-VLs are so wide; rows of their inner size are not a multiple of 16 bytes."""
    if family == "glm4v":
        return glm4v.stock()
    if family == "qwen2_5_omni":
        return qwen2_5_omni.stock()
    if family == "qwen3_omni_moe":
        return qwen3_omni_moe.stock()
    config = qwen.config(QwenKind(family))
    vision = config.vision_config
    setattr(vision, "embed_dim" if family == QWEN2 else "hidden_size", 2 * width)
    vision.intermediate_size = inner
    model = getattr(transformers, f"{qwen.EVERY[family]}ForConditionalGeneration")(config).eval()
    qwen.draw_weights(model, lambda name, noise: qwen.draw_qwen_weight(family, name, noise))
    return model


def tower_of(family):
    register_window_attention()
    model = stock_of(family)
    model.set_attn_implementation({"vision_config": WINDOWS})
    return model.model.visual


@torch.inference_mode()
def features(tower, grid, dtype=torch.float32):
    """All that a tower gives for a clip of noise, the same at every call."""
    vision, count = tower.config, grid[0] * grid[1] * grid[2]
    size = 3 * vision.temporal_patch_size * vision.patch_size**2
    values = torch.randn(count, size, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = tower(values, torch.tensor([[1, *grid[1:]]] * grid[0]))
    levels = getattr(found, "deepstack_features", None) or ()
    return torch.cat([found.pooler_output.flatten(), *(level.flatten() for level in levels)]).float()


def fused(tower):
    tower = copy.deepcopy(tower)
    fuse_vision_blocks(tower, KERNELS)
    return tower


def blocks_of(tower):
    return [isinstance(block, fused_vision._VisionBlock) for block in tower.blocks]


@pytest.mark.sample(full=5)
@pytest.mark.parametrize("family, grid", full_but([(QWEN25, "four"), (QWEN3, "one")], CASES))
def test_features_of_the_stock_tower(family, grid):
    tower = tower_of(family)
    ours = fused(tower)
    assert all(blocks_of(ours)) and not any(blocks_of(tower))
    expected = features(tower, GRIDS[grid])
    assert expected.norm() > 0
    torch.testing.assert_close(features(ours, GRIDS[grid]), expected, rtol=1e-4, atol=1e-4 * float(expected.std()))


@pytest.mark.full
@pytest.mark.parametrize("family", [QWEN25, QWEN3, "glm4v"])
def test_half_precision_is_as_near_to_float32_as_the_stock_tower(family):
    tower = tower_of(family)
    exact = features(tower, GRIDS["two"])
    tower.half()
    stock, ours = (features(one, GRIDS["two"], torch.float16) - exact for one in (tower, fused(tower)))
    assert 0 < ours.norm() < 1.5 * stock.norm() < 0.05 * exact.norm()


def test_inner_sizes_are_padded_only_where_rows_are_not_aligned():
    sizes = {}
    for inner, dtype in ((50, torch.float16), (56, torch.float16), (50, torch.float32), (52, torch.float32)):
        mlp = tower_of(QWEN25).blocks[0].mlp
        mlp.gate_proj, mlp.up_proj = nn.Linear(48, inner), nn.Linear(48, inner)
        mlp.down_proj = nn.Linear(inner, 48)
        made = fused_vision._GatedMlp(mlp.to(dtype), KERNELS)
        sizes[inner, dtype] = made.down.in_features
        assert made.gate_up.out_features == 2 * made.down.in_features
    assert [*sizes.values()] == [64, 56, 64, 52]


def test_fused_blocks_stay_when_a_model_is_prepared_again():
    tower = fused(tower_of(QWEN25))
    before = [*tower.modules()]
    fuse_vision_blocks(tower, KERNELS)
    assert [*tower.modules()] == before


class OtherLinear(nn.Linear):
    """A layer of another package."""


def change(tower, what):
    """Make every block one that is not fused."""
    for block in tower.blocks:
        if what == "quantised":
            block.attn.qkv.__class__ = OtherLinear
        elif what == "hooked":
            block.mlp.forward = block.mlp.forward
        elif what == "dtypes":
            block.attn.to(torch.float64)
        elif what == "meta":
            block.to("meta")
        elif what == "another norm":
            block.norm1 = nn.Identity()
        elif what == "adapted":
            block.attn.lora = nn.Linear(4, 4)
    if what == "attention":
        tower.set_attn_implementation("sdpa")


@pytest.mark.parametrize("what", ["quantised", "hooked", "dtypes", "meta", "another norm", "adapted", "attention"])
def test_other_blocks_are_left_alone(what):
    tower = tower_of(QWEN25)
    change(tower, what)
    before = [*tower.modules()]
    fuse_vision_blocks(tower, KERNELS)
    assert [*tower.modules()] == before


@pytest.mark.full
def test_another_activation_stays():
    """Of its block the rest is fused."""
    tower = tower_of(QWEN25)
    for block in tower.blocks:
        block.mlp.act_fn = nn.GELU()
    ours = fused(tower)
    assert all(blocks_of(ours)) and not any(isinstance(part, fused_vision._GatedMlp) for part in ours.modules())
    torch.testing.assert_close(features(ours, GRIDS["two"]), features(tower, GRIDS["two"]), rtol=1e-4, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("family", [QWEN25, QWEN3])
def test_a_model_on_a_gpu_gets_them(family, monkeypatch):
    kind = QwenKind(family)
    stock = qwen.adapter(kind)
    assert not any(blocks_of(stock.tower))
    monkeypatch.setattr(video_language_model, "load_block_kernels", lambda device: KERNELS)
    ours = qwen.adapter(kind)
    assert all(blocks_of(ours.tower))
    pixels = qwen.pixels(stock, frames=2)
    for pooled in (False, True):
        ours_seen, seen = (model.encode(pixels, pooled=pooled) for model in (ours, stock))
        for one, other in zip(
            (ours_seen.features, *ours_seen.deepstack), (seen.features, *seen.deepstack), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
