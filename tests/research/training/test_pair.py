"""The built-in pairs that ship: what they are made of, what they score, and that the recorded scores are theirs."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open

from research.training.architecture import architecture
from research.training.evaluate import digest, evaluate
from research.training.train import SETTINGS
from research.world.samples import draw_sample
from research.world.scoring import score, total
from vidspec import Captioner
from vidspec.config import profiles
from vidspec.embedded.samples import shipped
from vidspec.models import loading
from vidspec.models.placement import resolve_placement

pytestmark = pytest.mark.full

FAMILIES = {"embedded": "llava_onevision", "embedded-qwen": "qwen2_5_vl"}
#: The least fact F1 of the default clip, and of all four pooled: later, better pairs raise them.
DEFAULT_F1 = {"embedded": 1.0, "embedded-qwen": 1.0}
SHIPPED_F1 = {"embedded": 0.9, "embedded-qwen": 0.9}
#: The least recorded fact F1 of the target on held-out clips.
HELD_OUT_F1 = {"embedded": 0.98, "embedded-qwen": 0.97}
#: Visual tokens of eight frames.
EIGHT = {"embedded": 8 * 16 + 1, "embedded-qwen": 4 * 35}


@pytest.fixture(params=FAMILIES)
def name(request):
    return request.param


@pytest.fixture
def folder(name):
    return loading.embedded_folder(name, "target").parent


@pytest.fixture(scope="module")
def pair():
    where = resolve_placement("cpu")
    return tuple(
        loading.load_model(str(loading.embedded_folder("embedded", role)), where) for role in ("target", "draft")
    )


def scene(path):
    """The scene of a shipped clip, drawn again from the seed in its record."""
    (record,) = [entry for entry in json.loads((path.parent / "truth.json").read_text()) if entry["file"] == path.name]
    return draw_sample(record["seed"], len(record["facts"]["objects"])).scene


def test_its_captions_are_marked(pair, tmp_path):
    """By where the model lies, whatever it is called by; before the first token, and in the record."""
    profile = profiles.load("ar", {"generate.max_new_tokens": 2, "video.frames": 2})

    def marks():
        opened, *_, finished = Captioner(profile, pair[0], None).stream(shipped()[0])
        return opened.demo, finished.caption.to_dict()["demo"]

    assert marks() == (True, True)
    pair[0].source, before = str(tmp_path), pair[0].source
    try:
        assert marks() == (False, False)
    finally:
        pair[0].source = before


def test_it_is_small_and_stored_in_half_precision(folder):
    size = {part: sum(file.stat().st_size for file in folder.glob(f"{part}/*")) for part in ("target", "draft", "head")}
    assert size["target"] + size["draft"] <= 20e6 and size["head"] <= 2e6
    for weights in folder.glob("*/model.safetensors"):
        with safe_open(weights, "pt") as tensors:
            every = {tensors.get_tensor(name).dtype for name in tensors.keys()}  # noqa: SIM118
            codes = {torch.int8} if "head" in weights.parent.name else set()  # eight bits, with scales
            if codes:
                assert codes < every
            else:
                assert every - {torch.int64, torch.bool} == {torch.float16}


def test_stock_classes_load_it(name, folder):
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    for role in ("target", "draft"):
        model, info = AutoModelForImageTextToText.from_pretrained(folder / role, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]
        assert model.config.model_type == FAMILIES[name]
        assert len(AutoTokenizer.from_pretrained(folder / role)) <= model.config.text_config.vocab_size


def test_other_tools_find_all_that_a_processor_is_made_of(name, folder):
    """`AutoProcessor` itself needs torchvision; what it reads is there, and of one mind with the model's config."""
    for role in ("target", "draft"):
        read = {file.name: json.loads(file.read_text()) for file in (folder / role).glob("*.json")}
        vision = read["config.json"]["vision_config"]
        images, videos = read["preprocessor_config.json"], read["video_preprocessor_config.json"]
        assert images["processor_class"] == videos["processor_class"]
        assert images["image_mean"] == videos["image_mean"] and images["size"] == videos["size"]
        if name == "embedded":
            assert (
                read["processor_config.json"]["num_image_tokens"] == (vision["image_size"] // vision["patch_size"]) ** 2
            )
        else:
            assert images["patch_size"] == vision["patch_size"] == videos["patch_size"]


def test_it_is_what_the_training_script_makes(name, folder):
    from transformers import AutoConfig, AutoTokenizer

    family = architecture(FAMILIES[name])
    tokenizer = AutoTokenizer.from_pretrained(folder / "target")
    for role, size in family.sizes.items():
        shipped = AutoConfig.from_pretrained(folder / role).to_dict()
        for part, expected in family.config(size, tokenizer).to_dict().items():
            if isinstance(expected, dict):
                known = {key: value for key, value in shipped[part].items() if key in expected and key != "dtype"}
                assert known == {key: value for key, value in expected.items() if key in known}


def test_recorded_scores_are_those_of_these_weights(name, folder):
    recorded = json.loads((folder / "scores.json").read_text())
    assert recorded["sha256"] == {role: digest(folder / role) for role in ("target", "draft")}
    assert recorded["clips"] >= 200 and recorded["visual_tokens"] >= 500
    assert recorded["target_f1"] >= HELD_OUT_F1[name]
    assert recorded["draft_f1"] < recorded["target_f1"] - 0.05


def test_the_record_of_training_names_its_settings(name, folder):
    recorded = json.loads((folder / "training.json").read_text())
    assert recorded["settings"].pop("processes", 1) == 1  # a setting of earlier versions
    assert set(recorded["settings"]) == set(SETTINGS[recorded["from"]][FAMILIES[name]])


def test_the_shipped_clips_are_captioned_right(name):
    with Captioner.from_profile("vanilla-sd", overrides={"models.device": "cpu", "models.pair": name}) as captioner:
        records = {path: captioner.caption(path) for path in shipped()}
    assert all(record.counters["visual_tokens"] >= 500 for record in records.values())
    assert total(score(record.caption, scene(path)) for path, record in records.items()).f1 >= SHIPPED_F1[name]
    default = next(path for path in records if path.name == "three-objects.mp4")
    assert score(records[default].caption, scene(default)).f1 >= DEFAULT_F1[name]


def test_twice_as_many_frames_work(name):
    changes = {"models.device": "cpu", "video.frames": 64, "models.pair": name}
    with Captioner.from_profile("vanilla-sd", overrides=changes) as captioner:
        records = {path: captioner.caption(path) for path in shipped()}
    assert all(record.counters["visual_tokens"] >= 1000 for record in records.values())
    assert total(score(record.caption, scene(path)) for path, record in records.items()).f1 >= SHIPPED_F1[name]


def test_evaluation_scores_clips_it_draws(name):
    where = resolve_placement("cpu")
    models = [loading.load_model(str(loading.embedded_folder(name, role)), where) for role in ("target", "draft")]
    found = evaluate(*models, clips=2, seed=5, frames=8)
    assert found["clips"] == 2 and found["visual_tokens"] == EIGHT[name]
    assert 0 < found["target_f1"] <= 1 and 0 <= found["draft_f1"] <= 1 and found["tau"] >= 0


def test_its_head_drafts_what_the_target_writes(name):
    """Trained, that is: most of what it proposes is accepted; and the text is the target's."""
    few = {"models.pair": name, "video.frames": 16, "generate.max_new_tokens": 60, "models.device": "cpu"}
    with Captioner.from_profile("eagle3", overrides=few) as captioner:
        drafted = captioner.caption(shipped()[0])
        assert drafted.token_ids == captioner.caption(shipped()[0], plain=True).token_ids
    assert drafted.models["draft"] == "embedded/head" and drafted.lengths["tau"] > 2.5
