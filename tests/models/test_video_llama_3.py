"""VideoLLaMA 3 behind our interface gives what the stock model gives, for the prompt its processor writes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.models.video_llama_3.processing_video_llama_3 import VideoLlama3Processor
from transformers.video_utils import VideoMetadata

from research.stock_inputs import stock_pixels
from tests.checkpoints.video_llama_3 import adapter, stock
from tests.models.closeness import assert_close
from tests.models.parity import PROMPT, ParityCase, check_chunks, check_decoders, check_generate, check_rollback
from tests.models.parity import check_tree as check_tree_of
from vidspec.models.preprocess import pool_features
from vidspec.video import Clip

FRAMES, EVERY = 4, 1.25
NEW = [300, 41, 317, 77, 77, 260, 123, 338]


def clip(height=24, width=40):
    """Its left half stands still, and its last frame is the one before."""
    frames = np.random.RandomState(0).randint(0, 256, (FRAMES, height, width, 3), dtype=np.uint8)
    frames[1:, :, : width // 2] = frames[0, :, : width // 2]
    frames[-1] = frames[-2]
    return Clip.of(frames, [EVERY * frame for frame in range(FRAMES)])


class VideoLlamaCase(ParityCase):
    def __init__(self):
        model = adapter()
        super().__init__(model, stock(), model.preprocess(clip()))


@pytest.fixture(scope="module")
def case():
    return VideoLlamaCase()


def test_prompt_is_the_processors(case):
    """Fifteen tokens of the first frame, then the six or nine that change, and one of a frame that does not."""
    counts = case.seen.frame.bincount().tolist()
    assert counts[0] == 15 and 0 < counts[1] < 15 and counts[3] == 1
    about = VideoMetadata(total_num_frames=100, fps=1 / EVERY, frames_indices=list(range(FRAMES)))
    kept = case.inputs["video_compression_mask"]
    shown = {
        "video_grid_thw": torch.tensor([case.pixels.grid]),
        "video_merge_sizes": [2],
        "video_compression_mask": kept,
        "video_metadata": [about],
    }
    video = VideoLlama3Processor.replace_video_token(SimpleNamespace(video_token="<|video_pad|>"), shown, 0)
    assert video.startswith("Time 0.0s:<|video_pad|>") and video.endswith(",Time 3.8s:<|video_pad|>")
    text = f"<|im_start|>user\n{video}\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
    assert case.prefix.token_ids.tolist() == case.model.tokenizer.encode(text)
    assert len(case.prefix.visual) == int(kept.sum()) < case.model.visual_tokens(FRAMES, 24, 40) == 60


@torch.inference_mode()
def test_features_are_the_towers(case):
    inputs = {key: case.inputs[key] for key in ("pixel_values_videos", "video_grid_thw", "video_merge_sizes")}
    found = case.stock.model.get_video_features(**inputs)
    kept = case.inputs["video_compression_mask"]
    assert_close(case.seen.features, found.pooler_output[0][kept])
    pooled = case.model.encode(case.pixels, pooled=True)
    halved = pool_features(found.last_hidden_state.view(FRAMES, 3, 5, -1))
    assert_close(pooled.features, case.stock.model.projector(halved).flatten(0, 2))
    assert pooled.grid == (FRAMES, 2, 3) and case.seen.grid == (FRAMES, 3, 5)


def test_without_compression_all_tokens_stay(case):
    model = adapter()
    model.compresses = False
    seen = model.encode(case.pixels)
    assert len(seen) == 60 and "video_compression_mask" not in stock_pixels(model, case.pixels, case.prefix)


def test_decoding(case):
    assert case.model.decoder.name == "fused"
    check_decoders(case, NEW)
    check_chunks(case, NEW, [1, 5, 2])
    check_rollback(case, NEW, [300, 301, 302, 303, 304])
    check_tree_of(case, NEW, [300, 301, 302, 303, 304, 305, 306])


def test_greedy_decoding_is_generate(case):
    check_generate(case)
