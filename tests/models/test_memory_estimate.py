"""The estimate that ``vidspec models``, admission and refusals share."""

import subprocess
import sys

import pytest

from tests.decoding.test_admission import FRAMES, captioner, clip
from vidspec.decoding.admission import memory_claims
from vidspec.models.frame_rules import SquareFrames
from vidspec.models.known_pairs import KnownModel, MemoryWorkload
from vidspec.models.memory_estimate import BUDGET, PROMPT, ModelSizes, clip_memory
from vidspec.models.model_sizes import sizes_of

SIZES = ModelSizes(entry=10, states=7, embedding=4, features=3, tower_row=1000, pass_row=50, chunk=100)


def test_parts_of_a_clip():
    found = clip_memory(SIZES, visual=200, tokens=250, room=30, tower_rows=(8, 90))
    assert (found.entries, found.kv, found.states) == (280, 2800, 7)
    assert found.prompt == (250 + 3 * 200) * 4
    assert found.tower == 8 * 90 * 1000 and found.passes == 100 * 50
    assert found.total == 2800 + 7 + found.prompt + found.tower


@pytest.mark.parametrize(("steps", "rows", "expected"), [(1, 2_000_000, 2 * 10**9), (5000, 1000, BUDGET), (0, 0, 0)])
def test_the_tower_stays_in_its_budget_but_for_a_large_frame(steps, rows, expected):
    assert clip_memory(SIZES, visual=0, tokens=1, room=1, tower_rows=(steps, rows)).tower == expected


@pytest.mark.full
def test_a_listed_model_counts_as_a_loaded_one():
    """Keys and values of LLaVA-OneVision 7B, from the published facts and from the model."""
    load, made = MemoryWorkload(FRAMES, (384, 384), 512, "bfloat16"), captioner()
    model = made.client.setup.target.model
    loaded = load.memory(sizes_of(type(model), model.model, model.decoder, model.device), model.frame_rule)
    listed = KnownModel("", "llava_onevision", layers=28, kv_heads=4, head_dim=128)
    assert loaded.kv == listed.kv_bytes(load)
    claim = memory_claims(made.client.setup, clip(0))[0]
    text = claim.entries - model.visual_tokens(FRAMES, 384, 384) - made.client.setup.room
    assert loaded.prompt - claim.prompt == (PROMPT - text) * 3584 * 2 and loaded.tower == claim.tower
    one = model.clip_memory((1, 384, 384), 197, 220, 512)
    assert one.tower == 27**2 * SIZES_OF_A_ROW, "one frame is below the budget"


#: Bytes of a row of SigLIP's states while a block computes, with the states of its 26 blocks kept.
SIZES_OF_A_ROW = 4 * (1152 * (9 + 27) + 3 * 4304)


def test_a_model_without_a_rule_has_no_visual_tokens():
    load = MemoryWorkload()
    assert load.memory(SIZES, None).kv == (PROMPT + 512) * 10 and load.memory(SIZES, None).working == 0
    assert load.memory(SIZES, SquareFrames(2, 3)).kv == (32 * 2 + PROMPT + 512) * 10


def test_the_list_needs_no_torch():
    code = "import sys, vidspec.models.known_pairs, vidspec.models.memory_estimate; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
