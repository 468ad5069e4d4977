"""A small block head of a built-in target: recorded captions are what the package trains on, and it learns them."""

from __future__ import annotations

import json

import pytest
import torch

from research.training.architecture import architecture
from research.training.record_texts import record_texts, save_texts
from research.training.stage_block import FAMILIES, RecordedTexts, save_small
from vidspec.models import dflash, loading
from vidspec.models.placement import resolve_placement
from vidspec.training.head import SharedWeights, TrainedBlocks
from vidspec.training.steps import HeadTraining, TrainingLimits

pytestmark = pytest.mark.full

PLACE = resolve_placement("cpu", "float32")


@pytest.fixture(scope="module", params=["embedded", "embedded-qwen"])
def recorded(request, tmp_path_factory):
    """A target, a new head, and two batches of two captions."""
    target, folder = (
        loading.load_model(str(loading.embedded_folder(request.param, "target")), PLACE),
        tmp_path_factory.mktemp("texts"),
    )
    head = TrainedBlocks.new(target, SharedWeights.of(target), 2, 0)
    for seed in range(2):
        (texts,) = record_texts(
            architecture(FAMILIES[request.param]), target, [tap - 1 for tap in head.taps], 2, 2, seed
        )
        save_texts(folder / f"{seed}.pt", texts)
    return target, head, RecordedTexts(folder)


def test_final_states_give_the_tokens_after_them(recorded):
    target, head, texts = recorded
    for key in (*texts.trained, *texts.held_out):
        text = texts.read(key)
        chosen = head.shared.logits(text.finals.float(), capped=True)[:, : target.vocabulary].argmax(-1)
        agreed = (chosen == torch.tensor(text.tokens[1:])).float().mean()
        assert agreed > 0.95 and len(text.states) >= len(text.tokens)


def test_a_head_learns_texts_by_heart_and_is_written_in_eight_bits(recorded, tmp_path):
    target, head, texts = recorded
    keys = texts.trained
    run = HeadTraining(head, texts, keys, keys, tmp_path / "training", limits=TrainingLimits(steps=120))
    run.head_folder.mkdir(parents=True)
    before = run.validate()
    assert [*run.run()][-1].tau > before + 1
    save_small(run.head_folder, tmp_path / "small")
    assert "quantization_config" in json.loads((tmp_path / "small" / "config.json").read_text())
    small, whole = ((tmp_path / one / "model.safetensors").stat().st_size for one in ("small", "training/head"))
    assert small < 0.4 * whole
    assert dflash.load_block_head(str(tmp_path / "small"), target, PLACE).most == 16
