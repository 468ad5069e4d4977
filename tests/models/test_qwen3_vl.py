from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from research.stock_inputs import stock_inputs
from tests.checkpoints.qwen import DEEPSTACK, QWEN3, UNIT, QwenKind, adapter, pixels, stock
from vidspec.engine.forward import Engine
from vidspec.models.preprocess import patches

PROMPT = "Describe the video."


@pytest.fixture(scope="module")
def model():
    return adapter(QwenKind(QWEN3))


@pytest.fixture(scope="module")
def prefix(model):
    return model.prefix(model.encode(pixels(model)), PROMPT)


def clip(times):
    frames = np.random.RandomState(0).randint(0, 256, (len(times), 3 * UNIT, 4 * UNIT, 3), dtype=np.uint8)
    return SimpleNamespace(frames=frames, timestamps=np.array(times))


def test_preprocess(model):
    shown = model.preprocess(clip([0.0, 0.5, 1.0, 1.5, 2.0]))
    stored, grid, _ = patches(clip([0.0] * 5).frames, model.rules)
    assert torch.equal(shown.stored, stored) and shown.grid == grid == (3, 6, 8)
    assert shown.seconds == (0.25, 1.25, 2.0)  # the middle of each two frames; the last is shown twice


def test_clip_of_one_frame(model):
    shown = model.preprocess(clip([0.4]))
    assert shown.grid == (1, 6, 8) and shown.seconds == (0.4,)
    assert len(model.encode(shown)) == 12


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_prompt_text(model, system):
    """The published template as the processor of transformers 5.23 renders it: five frames at two a second."""
    prefix = model.prefix(model.encode(model.preprocess(clip([0.0, 0.5, 1.0, 1.5, 2.0]))), PROMPT, system)
    step = "<|vision_start|>" + "<|video_pad|>" * 12 + "<|vision_end|>"
    video = f"<|vision_start|><0.2 seconds>{step}<1.2 seconds>{step}<2.0 seconds>{step}<|vision_end|>"
    first = "" if system is None else f"<|im_start|>system\n{system}<|im_end|>\n"
    text = f"{first}<|im_start|>user\n{video}{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
    assert prefix.token_ids.tolist() == model.tokenizer.encode(text)
    assert torch.equal((prefix.token_ids == model.visual_id).nonzero()[:, 0], prefix.visual.index)


def test_positions(prefix):
    """Those of transformers 5.23: each step starts its own time axis, text behind it the longer side further."""
    positions, visual = prefix.positions[:, 0], prefix.visual
    rows, columns, each = 3, 5, 15
    for step in range(visual.frames):
        own = visual.index[step * each : (step + 1) * each]
        start = int(positions[0, own[0] - 1]) + 1
        assert positions[0, own].tolist() == [start] * each
        assert positions[1, own].tolist() == [start + cell // columns for cell in range(each)]
        assert positions[2, own].tolist() == [start + cell % columns for cell in range(each)]
        assert positions[:, own[-1] + 1].tolist() == [start + max(rows, columns)] * 3
    assert prefix.next_position == int(positions[0, -1]) + 1


def test_frames_are_steps(prefix):
    assert prefix.visual.frame.tolist() == [step for step in range(3) for _ in range(15)]
    assert not prefix.visual.required.any()
    assert int(prefix.text_rows_after_video[0]) == int(prefix.visual.index[-1]) + 1


def test_deepstack_is_the_towers(model):
    shown = pixels(model)
    seen, untouched = model.encode(shown), stock(QwenKind(QWEN3))
    found = untouched.get_video_features(shown.values, torch.tensor([shown.grid])).deepstack_features
    assert len(seen.deepstack) == len(found) == len(DEEPSTACK)
    for ours, (theirs,) in zip(seen.deepstack, found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_deepstack_enters_the_first_blocks_alone(model, prefix):
    """Parity holds only because of it, and rows of text do not get any."""
    engine = Engine(model)
    whole = engine.prefill(prefix, 2).logits
    for level in range(len(DEEPSTACK)):
        levels = list(prefix.visual.deepstack)
        levels[level] = torch.zeros_like(levels[level])
        without = engine.prefill(replace(prefix, visual=replace(prefix.visual, deepstack=tuple(levels))), 2).logits
        assert (without - whole).abs().max() > 1e-2


def test_stock_inputs_have_no_times(model, prefix):
    """This family reads them as text."""
    assert "second_per_grid_ts" not in stock_inputs(model, pixels(model), prefix)
