"""``--progress json``: lines that a scheduler reads."""

import json
from pathlib import Path

import pytest


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_progress_and_the_end_are_json_objects(vidspec, quiet):
    for name in "abc":
        Path(name).mkdir()
        Path(f"{name}/good.mp4").write_bytes(b"x")
    command = ("caption", "a", "b", "c", "-o", "out.jsonl", "--progress", "json", "--notify-every", "1", *quiet)
    for counts in ([1, 2, 3, 3], [0]):
        lines = [json.loads(line) for line in vidspec(*command).err.splitlines() if line.startswith("{")]
        assert [one["captioned"] for one in lines] == counts and {one["failed"] for one in lines} == {0}
        assert [one["event"] for one in lines] == ["progress"] * (len(counts) - 1) + ["end"]
        assert lines[-1]["total"] == 3 == lines[-1]["captioned"] + lines[-1]["earlier"]


def test_an_interrupted_run_ends_with_one_too(vidspec):
    ran = vidspec("caption", "stop.mp4", "good.mp4", "-o", "out.jsonl", "--batch", "1", "--progress", "json")
    ends = [json.loads(line) for line in ran.err.splitlines() if line.startswith("{")]
    assert ran.code == 130 and [one["event"] for one in ends] == ["end"]
