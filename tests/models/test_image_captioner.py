"""The caption of a frame: by models of the hub as the library runs them, and by the draft itself."""

import copy
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import checkpoint, copy_checkpoint
from tests.engine.passing import forward
from vidspec import video
from vidspec.engine.forward import Engine
from vidspec.errors import ModelError
from vidspec.models import image_captioner, loading
from vidspec.models.image_captioner import LONGEST, VIDEO_PROMPT, DraftCaptioner, first_sentence, middle_frame
from vidspec.models.placement import resolve_placement

PLACE = resolve_placement("cpu", "float32")
FACTS = video.SourceFacts("", 5.0, 64, 48, "none", "none", 1.0, False, 0, 5, "none")


def clip(seed=0, frames=5):
    noise = np.random.default_rng(seed).integers(0, 255, (frames, 48, 64, 3), dtype=np.uint8)
    return video.Clip(noise, np.arange(float(frames)), FACTS)


@pytest.fixture(scope="module", params=["blip", "florence2", "image_llava"])
def folder(request):
    return checkpoint(request.param)


@pytest.fixture(scope="module")
def captioner(folder):
    return image_captioner.load_image_captioner(str(folder), PLACE)


@pytest.mark.parametrize(("frames", "middle"), [(1, 0), (2, 1), (5, 2)])
def test_middle_frame(frames, middle):
    whole = clip(frames=frames)
    one = middle_frame(whole)
    assert np.array_equal(one.frames, whole.frames[middle : middle + 1]) and one.timestamps.tolist() == [middle]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("A cat. A dog.", "A cat."),
        ("A cat sits\n on  a mat", "A cat sits on a mat"),
        ("3.5 cats! Many", "3.5 cats!"),
        (" ", ""),
    ],
)
def test_first_sentence(text, sentence):
    assert first_sentence(text) == sentence


@pytest.mark.full
def test_models_of_the_hub_see_the_middle_frame_alone(captioner):
    whole = clip(1)
    caption = captioner(whole)
    others = whole.frames.copy()
    others[[0, 1, 3, 4]] = 0
    assert captioner(video.Clip(others, whole.timestamps, FACTS)) == caption
    # What they say depends on what they see, or this says nothing.
    assert len({captioner(clip(seed)) for seed in range(8)}) > 1


@pytest.mark.sample(quick=1)
def test_the_text_is_that_of_the_stock_model(captioner, folder):
    """Greedy, from the processor's own prompt, without the prompt in it."""
    import transformers

    stock = transformers.AutoModelForImageTextToText.from_pretrained(folder)
    processor = transformers.AutoProcessor.from_pretrained(folder)
    asked = {
        "blip": {},
        "florence2": {"text": "<CAPTION>"},
        "llava": {"text": f"<image> {image_captioner.IMAGE_PROMPT}"},
    }[stock.config.model_type]
    whole = clip(1)
    inputs = processor(images=whole.frames[2], return_tensors="pt", **asked)
    ids = stock.generate(**inputs, max_new_tokens=LONGEST, do_sample=False)[0]
    ids = ids[inputs["input_ids"].shape[1] :] if stock.config.model_type == "llava" else ids
    assert captioner(whole) == first_sentence(processor.decode(ids, skip_special_tokens=True))
    assert captioner.name == str(folder)


@pytest.mark.full
def test_captions_are_short(captioner):
    assert max(len(captioner(clip(seed)).split()) for seed in range(6)) <= LONGEST


def test_another_kind_of_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}), encoding="utf-8")
    with pytest.raises(ModelError, match="qwen2 caption no images") as caught:
        image_captioner.load_image_captioner(str(tmp_path), PLACE)
    assert "Florence-2" in caught.value.hint


def test_missing_weights(tmp_path):
    folder = copy_checkpoint(tmp_path / "blip", "blip")
    file = folder / "model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if name.startswith("text_decoder"))
    del weights[name]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="1 weights are not in the files"):
        image_captioner.load_image_captioner(str(folder), PLACE)


def test_damaged_files(tmp_path):
    folder = copy_checkpoint(tmp_path / "blip", "blip")
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be loaded"):
        image_captioner.load_image_captioner(str(folder), PLACE)


def test_no_such_folder():
    with pytest.raises(ModelError, match=r"no such folder"):
        image_captioner.load_image_captioner("./nowhere", PLACE)


@pytest.fixture(scope="module")
def draft():
    return Engine(loading.load_model(str(checkpoint("readable")), PLACE))


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("seed", range(4))
@torch.inference_mode()
def test_the_draft_captions_greedily_until_a_sentence_ends(draft, seed):
    whole, model = clip(seed), draft.model
    prefix = model.prefix(model.encode(model.preprocess(middle_frame(whole))), VIDEO_PROMPT)
    tokens, text = [], ""
    while len(tokens) < LONGEST and not text.rstrip().endswith((".", "!", "?")):
        logits = (
            forward(draft, draft.prefill(prefix, 99), tokens).logits[-1] if tokens else draft.prefill(prefix, 0).logits
        )
        token = int(logits.argmax())
        if token in model.eos:
            break
        tokens.append(token)
        text = model.tokenizer.decode(tokens, skip_special_tokens=True)
    assert DraftCaptioner(draft.model)(whole) == first_sentence(text) != ""


@pytest.mark.full
def test_a_draft_that_thinks_first_captions_without_reasoning(draft):
    """Its prompt closes the reasoning that its template opens."""

    def ending(text):
        model = copy.copy(draft.model)
        model.template = copy.copy(draft.model.template)
        model.template.source += f"{{{{ {text!r} }}}}"
        vars(model.template).pop("thinks", None)
        return model

    whole, thinker = clip(), ending("<think>\n")
    said, closed = DraftCaptioner(thinker)(whole), DraftCaptioner(ending("<think>\n\n</think>\n\n"))(whole)
    assert thinker.template.thinks and said == closed != ""
    assert said != DraftCaptioner(draft.model)(whole)


@pytest.mark.full
def test_the_built_in_draft_says_something_true():
    from vidspec.embedded.samples import shipped

    engine = Engine(loading.load_model(str(loading.embedded_folder("embedded", "draft")), PLACE))
    said = {path.stem: DraftCaptioner(engine.model)(video.read(path, frames=8)) for path in shipped()}
    assert "one object" in said["one-object"] and all(text.endswith(".") for text in said.values()), said
