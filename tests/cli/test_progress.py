"""``--progress json``: lines that a scheduler reads."""

import json
import sys
import warnings
from pathlib import Path

import pytest

from tests.fake_captioner import FakeCaptioner


@pytest.fixture(autouse=True)
def clips():
    for name in "abc":
        Path(name).mkdir()
        Path(f"{name}/good.mp4").write_bytes(b"x")


def events(ran):
    """Standard error, of which every line is an event."""
    return [json.loads(line) for line in ran.err.splitlines()]


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_progress_and_the_end_are_json_objects(vidspec, monkeypatch, quiet):
    monkeypatch.setattr("vidspec.cli.terminal.PROGRESS_INTERVAL", 0.0)
    command = ("caption", "a", "b", "c", "-o", "out.jsonl", "--progress", "json", *quiet)
    for counts in ([1, 2, 3, 3], [0]):
        lines = [one for one in events(vidspec(*command)) if one["event"] in ("progress", "end")]
        assert [one["captioned"] for one in lines] == counts and {one["failed"] for one in lines} == {0}
        assert [one["event"] for one in lines] == ["progress"] * (len(counts) - 1) + ["end"]
        assert lines[-1]["waited_for_frames"] == (0.25 if counts[-1] else None)
        assert lines[-1]["clips_per_hour"] == pytest.approx(3600 * lines[-1]["clips_per_s"], rel=0.05, abs=0.2)
        assert lines[-1]["total"] == 3 == lines[-1]["captioned"] + lines[-1]["earlier"]


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_each_clip_is_one_event(vidspec, quiet):
    ran = vidspec("caption", "a", "missing.mp4", "b", "--progress=json", "--batch", "1", *quiet)
    clips = [one for one in events(ran) if one["event"] == "clip"]
    failed = [one for one in clips if one["error"]]
    assert [one["path"] for one in failed] == ["missing.mp4"] and failed[0]["error"]["kind"]
    done = {one["path"]: one["tokens"] for one in clips if not one["error"]}
    assert sorted(done) == ([] if quiet else ["a/good.mp4", "b/good.mp4"]) and all(done.values())
    assert ran.code == 1 and events(ran)[-1]["event"] == "end"


def test_what_others_print_and_errors_are_events_too(vidspec, monkeypatch):
    stream = FakeCaptioner.stream

    def noisy(self, path, **asked):
        print("on standard output", end="")
        print("\rdone", file=sys.stderr)
        warnings.warn("beware", stacklevel=1)
        raise RuntimeError("a bug")
        yield from stream(self, path, **asked)

    monkeypatch.setattr(FakeCaptioner, "stream", noisy)
    said = [one.get("message", "") for one in events(vidspec("caption", "a", "--progress", "json", "-o", "x.jsonl"))]
    assert {"on standard output", "done", "Traceback (most recent call last):"} <= set(said)
    for wrong in (("caption", "--progress", "json"), ("caption", "a", "--progress=json", "--nope")):
        ran = vidspec(*wrong)
        assert ran.code == 2 and [one["event"] for one in events(ran)] == ["error"]


def test_an_interrupted_run_ends_with_one_too(vidspec):
    ran = vidspec("caption", "stop.mp4", "good.mp4", "-o", "out.jsonl", "--batch", "1", "--progress", "json")
    assert ran.code == 130 and [one["event"] for one in events(ran)][-2:] == ["end", "note"]
