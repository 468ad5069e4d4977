"""Captions of a small random checkpoint, written by a run as users make them."""

import json
from pathlib import Path

import pytest

import vidspec
from tests.checkpoints import checkpoint
from vidspec.embedded.samples import shipped

#: Captions of a run, and tokens of each.
COUNT, TOKENS = 56, 40


@pytest.fixture(scope="session")
def caption_lines(tmp_path_factory):
    """A JSONL of captions of one clip, one for each of many prompts, with the hidden file beside it."""
    folder = tmp_path_factory.mktemp("captions")
    rows = [{"path": str(shipped()[0]), "id": row, "prompt": f"Describe {row}."} for row in range(COUNT)]
    (folder / "clips.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    made = vidspec.run(
        folder / "clips.jsonl",
        target=str(checkpoint("readable")),
        profile="ar",
        frames=1,
        max_new_tokens=TOKENS,
        stop_loops=False,
        device="cpu",
        dtype="float32",
        output=folder / "captions.jsonl",
        batch=8,
    )
    assert sum(1 for _ in made) == COUNT
    return folder / "captions.jsonl"


@pytest.fixture
def user_cache(tmp_path, monkeypatch) -> Path:
    """The user's cache folder, an empty one."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "cache"))
    return tmp_path / "cache"
