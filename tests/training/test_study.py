"""The study of heads of one's own measures any head again by its captions."""

import json
import shutil

import pytest

from research.studies import own_head
from vidspec.training.train import train


@pytest.mark.full
def test_heads_are_measured_again_by_their_captions(caption_lines, user_cache, tmp_path, capsys):
    """Each head beside the captions, also one that was begun with another; equal texts, and no speeds."""
    captions, out = tmp_path / "brief.jsonl", tmp_path / "rows.jsonl"
    shutil.copyfile(caption_lines, captions)
    hidden = caption_lines.with_name(f".{caption_lines.name}.vidspec.jsonl")
    shutil.copyfile(hidden, tmp_path / ".brief.jsonl.vidspec.jsonl")
    command = ["again", "--counters", "--captions", str(captions), "--out", str(out)]
    assert own_head.main(command) == 2 and "there is no" in capsys.readouterr().err
    for _ in train(captions, steps=2, out=tmp_path / "head-brief"):
        pass
    shutil.copytree(tmp_path / "head-brief", tmp_path / "head-brief-from")
    assert own_head.main(command) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["study"] for row in rows] == ["head-brief, again", "head-brief-from, again"]
    assert all((row["equal"], row["measured"], row["decode"]) == (8, 8, None) and row["tau"] >= 1 for row in rows)
