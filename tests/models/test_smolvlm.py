"""SmolVLM2 behind our interface gives what the stock model gives, for the prompt its processor writes."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.models.smolvlm import processing_smolvlm
from transformers.video_utils import VideoMetadata

from tests.checkpoints import checkpoint
from tests.checkpoints.smolvlm import IMAGE_SIZE, SIDE, adapter, stock
from tests.engine.passing import forward
from tests.models import record_preprocess_smolvlm
from tests.models.closeness import assert_close
from tests.models.parity import PROMPT, ParityCase, check_generate, check_profiles
from vidspec.embedded.samples import shipped
from vidspec.models import loading
from vidspec.models.families.smolvlm import SmolVLM, number_in_words
from vidspec.models.placement import resolve_placement
from vidspec.models.preprocess import resize, resize_as_floats

RECORDED = Path(__file__).parent / "fixtures" / "preprocess_smolvlm.npz"
SEEDS = range(20)
FRAMES, RATE, DURATION = 3, 0.03, 95.7


def clip(height=40, width=60, seed=0):
    frames = np.random.RandomState(seed).randint(0, 256, (FRAMES, height, width, 3), dtype=np.uint8)
    facts = SimpleNamespace(duration_s=DURATION)
    return SimpleNamespace(frames=frames, timestamps=np.arange(FRAMES) / RATE, facts=facts)


def made(seed=0):
    model = adapter(seed=seed)
    return ParityCase(model, stock(seed=seed), model.preprocess(clip(seed=seed)))


@pytest.fixture(scope="module")
def case():
    return made()


@pytest.mark.parametrize("name", record_preprocess_smolvlm.CASES)
def test_pixels_are_the_processors(name):
    config = record_preprocess_smolvlm.CONFIGS[record_preprocess_smolvlm.CASES[name][0]]
    model = object.__new__(SmolVLM)
    vision = SimpleNamespace(image_size=24, patch_size=4)
    model.model = SimpleNamespace(config=SimpleNamespace(vision_config=vision, scale_factor=2))
    model.tokenizer, model.template = None, SimpleNamespace()
    model.set_up(config)
    frames = record_preprocess_smolvlm.frames(name)
    shown = SimpleNamespace(frames=frames, timestamps=np.arange(len(frames)), facts=SimpleNamespace(duration_s=1.0))
    step = record_preprocess_smolvlm.STEP
    got = model.preprocess(shown).values[..., ::step, ::step].numpy()
    np.testing.assert_allclose(got, np.load(RECORDED)[name], rtol=0, atol=1e-5)


def test_a_device_without_the_filter_takes_the_bicubic_one():
    """As the library's processors do; bytes of a CPU have it."""
    bytes_ = torch.randint(0, 256, (1, 3, 30, 40), dtype=torch.uint8)
    assert torch.equal(resize_as_floats(bytes_, 12, 16, "lanczos"), resize_as_floats(bytes_, 12, 16, "bicubic"))
    assert not torch.equal(resize(bytes_, 12, 16, "lanczos"), resize(bytes_, 12, 16, "bicubic"))


@pytest.mark.parametrize("duration", [DURATION, None])
def test_prompt_is_the_processors(case, monkeypatch, duration):
    """Its own rule for the place of a video, and its own template, which the checkpoint's gives way to."""
    monkeypatch.setattr(processing_smolvlm, "num2words", number_in_words)
    like = SimpleNamespace(
        image_token="<image>",
        image_seq_len=SIDE**2,
        fake_image_token="<fake_token_around_image>",
        global_image_token="<global-img>",
    )
    about = VideoMetadata(100, fps=RATE, duration=duration, frames_indices=list(range(FRAMES)))
    shown = {"pixel_values": case.pixels.values[None], "video_metadata": [about]}
    video = processing_smolvlm.SmolVLMProcessor.replace_video_token(like, shown, 0)
    contents = [{"type": "video"}, {"type": "text", "text": PROMPT}]
    text = case.model.tokenizer.apply_chat_template(
        [{"role": "user", "content": contents}],
        chat_template=processing_smolvlm.DEFAULT_CHAT_TEMPLATE,
        add_generation_prompt=True,
        tokenize=False,
    )
    prefix = case.model.prefix(case.model.encode(replace(case.pixels, duration=duration)), PROMPT)
    assert prefix.token_ids.tolist() == case.model.tokenizer.encode(text.replace("<video>", video))
    assert "three frames from a 0:01:" in text.replace("<video>", video) and "Frame from 00:33:" in video
    assert len(prefix.visual) == FRAMES * SIDE**2 == case.model.visual_tokens(FRAMES, 40, 60)
    assert prefix.visual.frame.tolist() == [frame for frame in range(FRAMES) for _ in range(SIDE**2)]
    assert prefix.visual.row[: SIDE + 1].tolist() == [0] * SIDE + [1]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "zero"),
        (8, "eight"),
        (13, "thirteen"),
        (20, "twenty"),
        (64, "sixty-four"),
        (100, "one hundred"),
        (128, "one hundred and twenty-eight"),
        (1001, "one thousand and one"),
        (2345, "two thousand, three hundred and forty-five"),
        (70000, "seventy thousand"),
    ],
)
def test_numbers_in_words(count, words):
    assert number_in_words(count) == words


def test_features_are_the_towers(case):
    found = case.stock.get_image_features(case.pixels.values[None]).pooler_output[0]
    assert_close(case.model.encode(case.pixels).features, found)
    pooled = case.model.encode(case.pixels, pooled=True)  # 3 x 3 patches, folded as 4 x 4
    assert len(pooled) == FRAMES * 4 and pooled.grid == (FRAMES, 2, 2)
    assert case.pixels.values.shape == (FRAMES, 3, IMAGE_SIZE, IMAGE_SIZE)


@torch.inference_mode()
def test_prefill_and_windows(case):
    whole = case.stock(**case.inputs).logits[0, :, : case.model.vocabulary]
    read = case.engine.prefill(case.prefix, 32)
    assert_close(read.logits, whole[-1])
    assert case.model.decoder.name == "fused"
    new = [300, 41, 317, 77, 260, 123, 338, 9, 41]
    ids = torch.cat([case.prefix.token_ids, torch.tensor(new)])[None]
    longer = {**case.inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    expected = case.stock(**longer).logits[0, case.prefix.length :, : case.model.vocabulary]
    for size in range(1, 10):
        read.span.rollback(case.prefix.length)
        assert_close(forward(case.engine, read, new[:size]).logits, expected[:size])


@pytest.mark.full
def test_plain_decoding_is_generate():
    for seed in SEEDS:
        check_generate(made(seed))


PROFILES = (
    "vanilla-sd",
    "specvlm",
    "sd-frame",
    "uv-sequential",
    "hippo-sequential",
    "self-sd",
    "self-int8",
    "tabed-mtcp",
)


@pytest.mark.full
def test_profiles_are_exact():
    place = resolve_placement("cpu", "float32")
    target, draft = (loading.load_model(str(checkpoint("smolvlm", noise=noise)), place) for noise in (0.0, 0.03))
    settings = {"generate.max_new_tokens": 40, "video.frames": 8}
    check_profiles(target, draft, PROFILES, [str(path) for path in shipped()], settings)
