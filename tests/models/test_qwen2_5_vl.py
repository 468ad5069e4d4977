import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast
from transformers.video_utils import VideoMetadata

from research.stock_inputs import stock_inputs
from tests.checkpoints.qwen import (
    PATCH,
    QWEN25,
    TOKENS_PER_SECOND,
    QwenKind,
    adapter,
    pixels,
    processor,
    stock,
    tokenizer,
)
from vidspec.errors import ModelError
from vidspec.models.base import VisionOutput
from vidspec.models.families.qwen2_5_vl import Qwen25VL, mrope, seconds_per_step
from vidspec.models.preprocess import patches
from vidspec.video import Clip

PROMPT = "Describe the video."
DEFAULT = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"


@pytest.fixture(scope="module")
def model():
    return adapter(QwenKind(QWEN25))


def seen(steps, rows, columns, seconds=()):
    """A video in which nothing is to be seen."""
    cell = torch.arange(steps * rows * columns)
    places = (cell // (rows * columns), cell // columns % rows, cell % columns)
    return VisionOutput(torch.zeros(len(cell), 64), *places, (steps, rows, columns), tuple(seconds))


def test_positions_of_a_long_clip():
    """Those of transformers 5.23: text resumes behind the longer side of the grid, not behind the time axis."""
    video = seen(32, 18, 32)
    rows = torch.arange(len(video)) + 15
    positions, following = mrope(15 + len(video) + 10, rows, video, 2.0)
    assert positions[:, :15].tolist() == [list(range(15))] * 3
    assert positions[:, 15].tolist() == [15, 15, 15]
    assert positions[:, 15 + len(video) - 1].tolist() == [15 + 62, 15 + 17, 15 + 31]
    assert positions[:, -10:].tolist() == [list(range(15 + 32, 15 + 42))] * 3
    assert following == 57


def test_time_is_rounded_down():
    video = seen(5, 1, 2)
    positions, following = mrope(13, torch.arange(1, 11), video, 0.7)
    assert positions[:, 1:11].tolist() == [
        [1, 1, 1, 1, 2, 2, 3, 3, 3, 3],
        [1] * 10,
        [1, 2] * 5,
    ]
    assert positions[:, 11:].tolist() == [[3, 4]] * 3 and following == 5


def test_positions_of_text_alone():
    positions, following = mrope(4, torch.empty(0, dtype=torch.long), None, 2.0)
    assert positions.tolist() == [[0, 1, 2, 3]] * 3 and following == 4


def test_prompt_that_ends_with_the_video():
    assert mrope(7, torch.arange(1, 7), seen(1, 2, 3), 2.0)[1] == 4


@pytest.mark.parametrize("seconds, step", [((0.5,), 1.0), ((0.0, 0.5), 0.5), ((1.0, 1.4, 2.4, 4.0), 1.0)])
def test_seconds_per_step(seconds, step):
    assert seconds_per_step(seconds) == pytest.approx(step)


def test_time_axis_follows_the_clip(model):
    slow = model.prefix(seen(4, 2, 3, (0.0, 3.0, 6.0, 9.0)), PROMPT)
    time = slow.positions[0, 0, slow.visual.index]
    assert (time - time[0]).tolist() == [TOKENS_PER_SECOND * 3 * step for step in range(4) for _ in range(6)]


def test_preprocess(model):
    frames = np.random.RandomState(0).randint(0, 256, (5, 26, 40, 3), dtype=np.uint8)
    shown = model.preprocess(Clip.of(frames, [0.1, 0.6, 1.1, 1.6, 2.1]))
    stored, grid, _ = patches(frames, model.rules)
    assert torch.equal(shown.stored, stored) and shown.grid == grid == (3, 6, 10)
    assert shown.values.shape == (180, 3 * 2 * PATCH**2)
    assert shown.seconds == (0.1, 1.1, 2.1)
    tokens = model.encode(shown)
    assert tokens.grid == (3, 3, 5) and len(tokens) == 45 and tokens.seconds == shown.seconds
    assert tokens.deepstack == ()


@pytest.mark.parametrize("count", [4, 8, 11, 32])
def test_steps_of_frames_by_number_are_those_of_the_processor(model, count):
    """``second_per_grid_ts`` of transformers' processor: frames of a step over the mean rate of the frames."""
    total, fps = 100, 25.0
    taken = np.linspace(0, total - 1, count).round().astype(int)
    rate = VideoMetadata(total_num_frames=total, fps=fps, frames_indices=taken.tolist()).sampled_fps
    clip = replace(Clip.of(np.zeros((count, 16, 16, 3), np.uint8), taken / fps), interval=total / fps / count)
    assert seconds_per_step(model.preprocess(clip).seconds) == pytest.approx(model.rules.steps / rate)


def test_rules_come_from_the_processor():
    config = {**processor(QWEN25), "max_pixels": 512, "image_mean": [0.1, 0.2, 0.3]}
    rules = Qwen25VL("tiny", stock(QwenKind(QWEN25)), tokenizer(), config).rules
    assert (rules.patch, rules.max_pixels, rules.mean) == (PATCH, 512, (0.1, 0.2, 0.3))


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("prompt", [PROMPT, "", "Zwei Wörter?\n\nEin 🚲!", " a <im_end> b"])
@pytest.mark.parametrize("system", [None, "Be brief.\n"])
def test_prompt_text(model, prompt, system):
    """The published template's text, with as many placeholders as there are visual tokens."""
    prefix = model.prefix(seen(2, 2, 3, (0, 1)), prompt, system)
    first = DEFAULT if system is None else f"<|im_start|>system\n{system}<|im_end|>\n"
    video = "<|vision_start|>" + "<|video_pad|>" * 12 + "<|vision_end|>"
    text = f"{first}<|im_start|>user\n{video}{prompt}<|im_end|>\n<|im_start|>assistant\n"
    assert prefix.token_ids.tolist() == model.tokenizer.encode(text)
    assert torch.equal((prefix.token_ids == model.visual_id).nonzero()[:, 0], prefix.visual.index)


def test_templates(model):
    def with_template(text):
        return Qwen25VL("tiny", stock(QwenKind(QWEN25)), tokenizer(), {}, template=text)

    own = with_template("see <|vision_start|><|video_pad|><|vision_end|> now")
    ids = own.prefix(seen(1, 1, 1, (0,)), PROMPT).token_ids
    assert own.tokenizer.decode(ids) == "see <|vision_start|><|video_pad|><|vision_end|> now"
    with pytest.raises(ModelError, match="no place for a video"):
        with_template("{{ messages[0]['role'] }}").prefix(seen(1, 1, 1, (0,)), PROMPT)


def test_stock_inputs(model):
    shown = pixels(model)
    prefix = model.prefix(model.encode(shown), PROMPT)
    inputs = stock_inputs(model, shown, prefix)
    assert inputs["video_grid_thw"].tolist() == [list(shown.grid)]
    assert inputs["second_per_grid_ts"].tolist() == pytest.approx([0.7])
    assert (inputs["mm_token_type_ids"][0] == 2).nonzero()[:, 0].tolist() == prefix.visual.index.tolist()


def test_prompts_in_the_published_vocabulary():
    """On demand: ``VIDSPEC_QWEN_TOKENIZER`` names a ``tokenizer.json`` of Qwen2.5 or Qwen3."""
    file = os.environ.get("VIDSPEC_QWEN_TOKENIZER")
    if not file:
        pytest.skip("VIDSPEC_QWEN_TOKENIZER names no tokenizer.json; it is too large to come with the tests")
    real = PreTrainedTokenizerFast(tokenizer_file=file)
    small = stock(QwenKind(QWEN25))
    for name in ("video_token", "vision_start_token", "vision_end_token"):
        token = {"video_token": "<|video_pad|>"}.get(name, f"<|{name.removesuffix('_token')}|>")
        setattr(small.config, f"{name}_id", real.convert_tokens_to_ids(token))
    small.model.language_model.embed_tokens = torch.nn.Embedding(len(real), 64)
    prefix = Qwen25VL("tiny", small, real, {}).prefix(seen(1, 2, 2, (0,)), PROMPT)
    system = [151644, 8948, 198, 2610, 525, 264, 10950, 17847, 13, 151645, 198]
    user = [151644, 872, 198, 151652, *[151656] * 4, 151653, 74785, 279, 2766, 13, 151645, 198]
    assert prefix.token_ids.tolist() == [*system, *user, 151644, 77091, 198]
