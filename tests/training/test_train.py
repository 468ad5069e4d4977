"""The whole way from a file of captions to a head that drafts."""

import json

import pytest

from vidspec.models import own_heads
from vidspec.training.train import Planned, StatesProgress, Trained, train


def test_captions_become_a_head(caption_lines, user_cache, tmp_path):
    """Events in their order; nothing stays of the states, and the head is a folder of the layout that others read."""
    events = [*train(caption_lines, steps=60, out=tmp_path / "head")]
    kinds = list(dict.fromkeys(type(event).__name__ for event in events))
    assert kinds == ["Planned", "StatesProgress", "StepsProgress", "MeasuredClip", "Trained"]
    planned, ended = events[0], events[-1]
    assert isinstance(planned, Planned) and isinstance(ended, Trained)
    assert (planned.clips, planned.held_out, planned.prompts) == (48, 8, 56) and not planned.continues
    assert [event.done for event in events if isinstance(event, StatesProgress)][-1] == 56
    assert ended.verdict.clips == 8 and all(one.drafted.token_ids == one.plain.token_ids for one in ended.measured)
    assert [*(user_cache / "training").iterdir()] == []
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["speculators_model_type"] == "dspark" and config["block_size"] == 16
    assert (ended.kept is not None) == (ended.verdict.decode >= own_heads.LEAST_GAIN)


def test_fewer_captions_than_a_head_learns_from_are_refused(caption_lines, user_cache, tmp_path):
    few = tmp_path / "few.jsonl"
    few.write_text("".join(caption_lines.read_text().splitlines(keepends=True)[:20]))
    (tmp_path / ".few.jsonl.vidspec.jsonl").write_bytes(
        (caption_lines.parent / f".{caption_lines.name}.vidspec.jsonl").read_bytes()
    )
    with pytest.raises(Exception, match="20 captions that one target wrote, and a head learns from 50 or more"):
        train(few)
