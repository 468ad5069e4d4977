"""Prompt and pixels of LLaVA-1.5 and LLaVA-NeXT, as the library's processors make them."""

import pytest
import torch
import transformers

from tests.checkpoints.llava import PATCH, LlavaKind, adapter, clip, stock, tokenizer
from tests.tiers import full_but
from vidspec.models.families.llava import VICUNA
from vidspec.models.families.llava_next import MISTRAL

FRAMES = 3
PROMPT = "Describe the video."


def processor(kind, template):
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

    options = {key: value for key, value in kind.processor.items() if key != "image_processor_type"}
    next_one = kind.family == "llava_next"
    made = (LlavaNextImageProcessorPil if next_one else CLIPImageProcessorPil)(**options)
    return (transformers.LlavaNextProcessor if next_one else transformers.LlavaProcessor)(
        made,
        tokenizer(kind.tokenizer),
        patch_size=PATCH,
        vision_feature_select_strategy=kind.select,
        chat_template=template,
        num_additional_image_tokens=1,
    )


ALREADY = VICUNA.replace("{% for message", "<s>{% for message", 1)


@pytest.mark.sample(quick=1, full=24)
@pytest.mark.parametrize("words", ["legacy", "first", "bare"])
@pytest.mark.parametrize("template", [VICUNA, MISTRAL, ALREADY], ids=["vicuna", "mistral", "with-bos"])
@pytest.mark.parametrize("prompt, system", [(PROMPT, None), ("Zwei Wörter?\n Ein 🚲!", "Be brief.")])
@pytest.mark.parametrize("family", full_but(["llava_next"], ["llava", "llava_next"]))
def test_prompt_is_the_processors(family, words, template, prompt, system):
    kind = LlavaKind(family=family, tokenizer=words)
    model, shown = adapter(kind, template=template), clip(FRAMES, 60, 90)
    content = [*[{"type": "image"}] * FRAMES, {"type": "text", "text": prompt}]
    messages = [{"role": "user", "content": content}]
    if system:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": system}]})
    oracle = processor(kind, template)
    text = oracle.apply_chat_template(messages, add_generation_prompt=True)
    # Like ``apply_chat_template(tokenize=True)``: no second <s>.
    options = {"add_special_tokens": not text.startswith("<s>")}
    expected = oracle(images=list(shown.frames), text=text, return_tensors="pt", **options)
    prefix = model.prefix(model.encode(model.preprocess(shown)), prompt, system)
    assert prefix.token_ids.tolist() == expected["input_ids"][0].tolist()
    assert torch.equal((prefix.token_ids == model.visual_id).nonzero()[:, 0], prefix.visual.index)
    assert prefix.positions.tolist() == [list(range(prefix.length))] and prefix.next_position == prefix.length


SIZES = [(60, 90), (90, 60), (42, 42), (200, 60), (37, 301), (30, 41), (43, 42), (84, 84), (127, 125)]


def same_bytes(got, expected, deviation):
    """PIL rounds some bytes of a resized picture the other way, by one.

    Pillow 13 resizes the rows of some tall pictures before their columns, torch and torchvision never do: with noise, a
    few bytes differ by more.
    """
    levels = (got - expected.float()).abs() * 255 * min(deviation)
    assert got.shape == expected.shape and got.dtype == torch.float32
    assert levels.max() < 14 and (levels > 1.01).float().mean() < 0.01 and levels.mean() < 0.4


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("family", ["llava", "llava_next"])
def test_pixels_are_the_processors(family, size):
    kind, shown = LlavaKind(family=family), clip(2, *size)
    expected = processor(kind, VICUNA).image_processor(list(shown.frames), return_tensors="pt")
    got = adapter(kind).preprocess(shown)
    same_bytes(got.values, expected["pixel_values"], kind.processor["image_std"])
    assert got.seconds == (0.0, 0.5)
    if family == "llava_next":
        assert [list(got.grid[1:])] * 2 == expected["image_sizes"].tolist()


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    "changes",
    [
        {"image_processor_type": "LlavaImageProcessor", "do_pad": True},
        {"size": {"height": 42, "width": 42}, "do_center_crop": False, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
        {"size": {"shortest_edge": 50}, "resample": 2},
        {"size": {"shortest_edge": 48}, "crop_size": {"height": 42, "width": 42}},
        {"size": 42, "crop_size": 42},
        {"size": {"shortest_edge": 36}},
    ],
    ids=["padded", "squeezed", "bilinear", "larger", "old", "smaller"],
)
@pytest.mark.parametrize("size", [(60, 90), (91, 35)], ids=str)
def test_other_processors(changes, size):
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

    kind, shown = LlavaKind(), clip(2, *size)
    settings = {**kind.processor, **changes}
    oracle = LlavaImageProcessorPil(**{k: v for k, v in settings.items() if k != "image_processor_type"})
    model = type(adapter(kind))("tiny", stock(kind), tokenizer(), settings)
    expected = oracle(list(shown.frames), return_tensors="pt")["pixel_values"]
    same_bytes(model.preprocess(shown).values, expected, settings["image_std"])


@pytest.mark.full
def test_no_processor_config_is_clips():
    model = type(adapter(LlavaKind()))("tiny", stock(LlavaKind()), tokenizer(), {})
    assert torch.equal(
        model.preprocess(clip(1, 50, 90)).values, adapter(LlavaKind()).preprocess(clip(1, 50, 90)).values
    )
