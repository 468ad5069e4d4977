"""InternVL behind our interface gives what the stock model gives, for the prompt its processor writes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.models.internvl.processing_internvl import InternVLProcessor

from tests.checkpoints import checkpoint
from tests.checkpoints.internvl import IMAGE_SIZE, SIDE, adapter, stock
from tests.engine.passing import forward
from tests.models.closeness import assert_close
from tests.models.parity import PROMPT, ParityCase
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.embedded.samples import shipped
from vidspec.models import loading
from vidspec.models.placement import resolve_placement

FRAMES = 3


def clip(height=40, width=60):
    frames = np.random.RandomState(0).randint(0, 256, (FRAMES, height, width, 3), dtype=np.uint8)
    return SimpleNamespace(frames=frames, timestamps=np.arange(FRAMES) / 2)


@pytest.fixture(scope="module", params=["qwen2", "qwen3"])
def case(request):
    model = adapter(language=request.param)
    return ParityCase(model, stock(language=request.param), model.preprocess(clip()))


def test_prompt_is_the_processors(case):
    """Its own rule for the place of a video, in its own order."""
    like = SimpleNamespace(
        start_image_token="<img>", image_token="<IMG_CONTEXT>", image_seq_length=SIDE**2, end_image_token="</img>"
    )
    shown = {"pixel_values_videos": [case.pixels.values]}
    video = InternVLProcessor.replace_video_token(like, shown, 0)
    text = f"<|im_start|>user\n{video}\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
    assert case.prefix.token_ids.tolist() == case.model.tokenizer.encode(text)
    assert len(case.prefix.visual) == FRAMES * SIDE**2 == case.model.visual_tokens(FRAMES, 40, 60)
    assert case.prefix.visual.frame.tolist() == [frame for frame in range(FRAMES) for _ in range(SIDE**2)]
    assert case.prefix.visual.row[: SIDE + 1].tolist() == [0] * SIDE + [1]


def test_frames_are_squares_normalised_as_the_config_says(case):
    values = case.pixels.values
    assert values.shape == (FRAMES, 3, IMAGE_SIZE, IMAGE_SIZE)
    white = case.model.preprocess(SimpleNamespace(frames=np.full((1, 9, 9, 3), 255, np.uint8), timestamps=[0.0]))
    expected = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(white.values[0, :, 3, 3], expected)


def test_features_are_the_towers(case):
    found = case.stock.get_image_features(case.pixels.values).pooler_output.flatten(0, 1)
    assert_close(case.model.encode(case.pixels).features, found)
    pooled = case.model.encode(case.pixels, pooled=True)
    assert len(pooled) == FRAMES * 4 and pooled.grid == (FRAMES, 2, 2)


@torch.inference_mode()
def test_prefill_windows_and_generate(case):
    whole = case.stock(**case.inputs).logits[0, :, : case.model.vocabulary]
    read = case.engine.prefill(case.prefix, 32)
    assert_close(read.logits, whole[-1])
    assert case.model.decoder.name == "fused"
    new = [300, 41, 317, 77]
    ids = torch.cat([case.prefix.token_ids, torch.tensor(new)])[None]
    longer = {**case.inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    expected = case.stock(**longer).logits[0, case.prefix.length :, : case.model.vocabulary]
    assert_close(forward(case.engine, read, new).logits, expected)
    made = case.generated(16)
    assert case.greedy(len(made)) == made


@pytest.mark.full
def test_profiles_are_exact():
    place = resolve_placement("cpu", "float32")
    target, draft = (loading.load_model(str(checkpoint("internvl", noise=noise)), place) for noise in (0.0, 0.03))
    texts = {}
    for name in ("ar", "vanilla-sd", "specvlm", "sd-frame", "uv-sequential", "self-sd", "self-int8", "tabed-mtcp"):
        profile = profiles.load(name, {"generate.max_new_tokens": 40, "video.frames": 8}, env={})
        with Captioner(profile, target, draft if profile.draft.has_model else None) as captioner:
            texts[name] = captioner.caption(shipped()[0]).token_ids
    assert all(text == texts["ar"] for text in texts.values()) and len(texts["ar"]) > 1
