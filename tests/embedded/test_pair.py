"""The built-in pair that ships: what it is made of, what it scores, and that its recorded scores are its own."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open

from vidspec import Captioner
from vidspec.embedded.evaluate import digest, evaluate, pass_times
from vidspec.embedded.samples import draw_sample, shipped
from vidspec.embedded.scoring import score, total
from vidspec.models import loading

PAIR = loading.embedded_folder("target").parent
#: The least fact F1 of the default clip, and of all four pooled: a later, better pair raises them.
DEFAULT_F1, SHIPPED_F1 = 1.0, 0.75


@pytest.fixture(scope="module")
def pair():
    where = loading.placement("cpu")
    return tuple(loading.load(str(PAIR / role), where) for role in ("target", "draft"))


def scene(path):
    """The scene of a shipped clip, drawn again from the seed in its record."""
    (record,) = [entry for entry in json.loads((path.parent / "truth.json").read_text()) if entry["file"] == path.name]
    return draw_sample(record["seed"], len(record["facts"]["objects"])).scene


def test_it_is_small_and_stored_in_half_precision():
    files = [file for file in PAIR.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 20e6
    for weights in PAIR.glob("*/model.safetensors"):
        with safe_open(weights, "pt") as tensors:
            assert {tensors.get_tensor(name).dtype for name in tensors.keys()} == {torch.float16}  # noqa: SIM118


def test_stock_classes_load_it():
    from transformers import AutoTokenizer, LlavaOnevisionForConditionalGeneration

    model, info = LlavaOnevisionForConditionalGeneration.from_pretrained(PAIR / "target", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert len(AutoTokenizer.from_pretrained(PAIR / "target")) <= model.config.text_config.vocab_size


def test_recorded_scores_are_those_of_these_weights():
    recorded = json.loads((PAIR / "scores.json").read_text())
    assert recorded["sha256"] == {role: digest(PAIR / role) for role in ("target", "draft")}
    assert recorded["clips"] >= 200 and recorded["visual_tokens"] >= 500
    assert recorded["draft_f1"] < recorded["target_f1"]


def test_the_record_of_training_names_its_settings():
    recorded = json.loads((PAIR / "training.json").read_text())
    assert {"seed", "language", "vision", "bank", "joint"} <= set(recorded["settings"])


def test_the_shipped_clips_are_captioned_right():
    with Captioner.from_profile("vanilla-sd", overrides={"models.device": "cpu"}) as captioner:
        records = {path: captioner.caption(path) for path in shipped()}
    assert all(record.counters["visual_tokens"] >= 500 for record in records.values())
    assert total(score(record.caption, scene(path)) for path, record in records.items()).f1 >= SHIPPED_F1
    default = next(path for path in records if path.name == "three-objects.mp4")
    assert score(records[default].caption, scene(default)).f1 >= DEFAULT_F1


def test_twice_as_many_frames_work():
    changes = {"models.device": "cpu", "video.frames": 64}
    with Captioner.from_profile("vanilla-sd", overrides=changes) as captioner:
        records = {path: captioner.caption(path) for path in shipped()}
    assert all(record.counters["visual_tokens"] >= 1000 for record in records.values())
    assert total(score(record.caption, scene(path)) for path, record in records.items()).f1 >= SHIPPED_F1


def test_evaluation_scores_clips_it_draws(pair):
    found = evaluate(*pair, clips=2, seed=5, frames=8)
    assert found["clips"] == 2 and found["visual_tokens"] == 8 * 16 + 1
    assert 0 < found["target_f1"] <= 1 and 0 <= found["draft_f1"] <= 1 and found["tau"] >= 0


def test_pass_times_are_those_of_the_rows_asked_for(pair, monkeypatch):
    rows = []
    forward = type(pair[1]).run

    def counted(model, embeds, *rest):
        rows.append(embeds.shape[1])
        return forward(model, embeds, *rest)

    monkeypatch.setattr(type(pair[1]), "run", counted)
    assert pass_times(pair[1], prompt=12, rows=3, repeats=2) > 0
    assert rows == [12] + [3] * 7
