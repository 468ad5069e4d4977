"""The families' models: positions, the batched vision tower, and that assembled models see and read as trained."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from research.training.architecture import Grid, architecture, build_tokenizer
from research.training.architecture_qwen import MAX_PIXELS, MIN_PIXELS
from research.training.stage_language import Reader, Shown, encode, text_batch
from vidspec.embedded.prompts import PROMPTS

pytestmark = pytest.mark.full

LLAVA, QWEN = (architecture(family) for family in ("llava_onevision", "qwen2_5_vl"))


@pytest.fixture(scope="module")
def assembled(tokenizer, tmp_path_factory):
    """A small Qwen2.5-VL model as the training leaves it, and the stock model of its folder."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(1)
    settings = QWEN.config(QWEN.sizes["draft"], tokenizer)
    reader, seer = Reader(QWEN, settings).eval(), QWEN.seer(settings).eval()
    folder = tmp_path_factory.mktemp("qwen")
    QWEN.assemble(settings, reader, seer, tokenizer, folder)
    model, info = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    return reader, seer, model.eval(), folder


def test_text_has_the_ids_of_the_first_pair(tokenizer):
    from transformers import AutoTokenizer

    from vidspec.models import loading

    first = AutoTokenizer.from_pretrained(loading.__file__.replace("models/loading.py", "embedded/pair/target"))
    text = f"{PROMPTS[0]} In this clip, three objects can be seen."
    assert tokenizer.encode(text) == first.encode(text)
    ids = tokenizer.get_vocab()
    for token in ("<|vision_start|>", "<|vision_end|>", "<|video_pad|>", "<|image_pad|>", "<|im_start|>", "<|im_end|>"):
        assert tokenizer.encode(token) == [ids[token]]
    assert "<video>" not in ids and tokenizer.eos_token == "<|im_end|>"


@pytest.mark.parametrize("grid", QWEN.grids)
@pytest.mark.parametrize(("steps", "interval"), [(16, 0.5), (16, 0.7391), (32, 0.25), (8, 1.9)])
def test_positions_are_those_of_the_stock_model(assembled, grid, steps, interval):
    _, _, model, _ = assembled
    before, after, count = 5, 20, steps * grid.tokens
    ids = torch.tensor([[7] * before + [model.config.video_token_id] * count + [9] * after])
    kinds = torch.tensor([[0] * before + [2] * count + [0] * after])
    expected, _ = model.model.get_rope_index(
        ids,
        mm_token_type_ids=kinds,
        video_grid_thw=torch.tensor([[steps, 2 * grid.rows, 2 * grid.columns]]),
        second_per_grid_ts=torch.tensor([interval]),
    )
    whole = QWEN.positions(before, np.arange(count), steps, grid, interval, after)
    assert whole.tolist() == expected[:, 0].tolist()
    kept = np.array([0, 3, count - 2])
    few = QWEN.positions(before, kept, steps, grid, interval, after)
    rows = [*range(before), *(before + kept), *range(before + count, before + count + after)]
    assert few.tolist() == whole[:, rows].tolist()


def test_sixty_four_frames_of_the_shortest_clips_have_times_of_their_own():
    grid = Grid(5, 7, frames=2)
    times = QWEN.positions(0, np.arange(32 * grid.tokens), 32, grid, 8 / 32, 0)[0]
    assert len(set(times.tolist())) == 32


@pytest.mark.parametrize("grid", [(5, 7), (4, 8), (6, 6), (3, 2)])
def test_the_batched_tower_is_the_stock_tower(assembled, grid):
    _, seer, model, _ = assembled
    rows, columns = grid
    frames = torch.randn(4, 3, 24 * rows, 24 * columns)
    cut = frames.view(2, 2, 3, rows, 2, 12, columns, 2, 12).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    with torch.no_grad():
        seen = seer(frames)
        stock = model.model.visual(
            cut.reshape(2 * 4 * rows * columns, -1), grid_thw=torch.tensor([[2, 2 * rows, 2 * columns]])
        ).pooler_output
        fast = seer.train()(frames).clone()
        with torch.autocast("cpu", torch.bfloat16):
            half = seer(frames).float()
    seer.eval()
    assert seen.shape == (2, rows, columns, 128) and torch.equal(seen, fast)
    assert torch.allclose(seen.flatten(0, 2), stock, atol=5e-3)
    assert (half - seen).abs().mean() < 0.03 * seen.abs().mean()


def test_the_assembled_model_reads_what_the_reader_did(assembled, tokenizer):
    reader, seer, model, _ = assembled
    grid, interval = Grid(5, 7, frames=2), 0.6
    frames = torch.randn(4, 3, 120, 168)
    text = encode(QWEN, tokenizer, (PROMPTS[0], "The video shows one object."))
    batch = text_batch(QWEN, [text], [Shown(np.arange(2 * grid.tokens), 2, grid, interval)])
    with torch.no_grad():
        ours = reader(batch, seer(frames).reshape(1, -1, 128))[0]
        ids = batch.ids.clone()
        ids.scatter_(1, batch.visual, model.config.video_token_id)
        cut = frames.view(2, 2, 3, 5, 2, 12, 7, 2, 12).permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(280, -1)
        stock = model(
            input_ids=ids,
            mm_token_type_ids=2 * (ids == model.config.video_token_id).int(),
            pixel_values_videos=cut,
            video_grid_thw=torch.tensor([[2, 10, 14]]),
            second_per_grid_ts=torch.tensor([interval]),
        ).logits[0]
        logits = ours @ reader.model.embed_tokens.weight.T
    assert torch.allclose(logits, stock, atol=0.02)


def test_generated_tokens_count_on_from_the_prompt(assembled):
    _, _, model, _ = assembled
    grid, steps, interval = Grid(5, 7, frames=2), 16, 0.75
    ids = torch.tensor([[7] * 5 + [model.config.video_token_id] * steps * grid.tokens + [9] * 3])
    seen = []
    handle = model.model.language_model.register_forward_pre_hook(
        lambda _module, _args, given: seen.append(given["position_ids"][1:, 0]), with_kwargs=True
    )
    model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=2 * (ids == model.config.video_token_id).int(),
        pixel_values_videos=torch.randn(steps * 140, 864),
        video_grid_thw=torch.tensor([[steps, 10, 14]]),
        second_per_grid_ts=torch.tensor([interval]),
        max_new_tokens=4,
        min_new_tokens=4,
    )
    handle.remove()
    ours = QWEN.positions(5, np.arange(steps * grid.tokens), steps, grid, interval, 3 + 3)
    assert torch.cat(seen, dim=1).tolist() == ours.tolist()


def test_the_processor_has_a_budget_of_pixels(assembled):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    *_, folder = assembled
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        settings = json.loads((folder / name).read_text())
        assert settings["size"] == {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}
        assert settings["image_mean"] == list(QWEN.mean) and settings["patch_size"] == 12
    sizes = {(240, 320): (5, 7), (360, 640): (4, 8), (300, 300): (6, 6), (320, 240): (7, 5), (640, 360): (8, 4)}
    grids = {(grid.rows, grid.columns) for grid in QWEN.grids}
    for (height, width), expected in sizes.items():
        resized = smart_resize(height, width, 24, MIN_PIXELS, MAX_PIXELS)
        assert (resized[0] // 24, resized[1] // 24) == expected and expected in grids


def test_the_first_familys_assembled_model_sees_and_reads_what_the_halves_did(tmp_path):
    from transformers import LlavaOnevisionForConditionalGeneration

    torch.manual_seed(1)
    words = build_tokenizer(samples=300)
    settings = LLAVA.config(LLAVA.sizes["draft"], words)
    reader, seer = Reader(LLAVA, settings).eval(), LLAVA.seer(settings).eval()
    LLAVA.assemble(settings, reader, seer, words, tmp_path)
    model = LlavaOnevisionForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32).eval()
    frames = torch.rand(2, 3, 96, 96) * 2 - 1
    text = encode(LLAVA, words, (PROMPTS[0], "The video shows one object."))
    batch = text_batch(LLAVA, [text], [Shown(np.arange(33), 2, Grid(4, 4))])
    ids = batch.ids.clone()
    ids.scatter_(1, batch.visual, model.config.video_token_id)
    with torch.no_grad():
        tokens = seer.tokens(frames)
        assert tokens.shape == (2, 4, 4, 128)
        ours = reader(batch, reader.visual(tokens.flatten(0, 2))[None])[0] @ reader.model.embed_tokens.weight.T
        stock = model(input_ids=ids, pixel_values_videos=frames[None]).logits[0]
    assert torch.allclose(ours, stock, atol=0.02)
