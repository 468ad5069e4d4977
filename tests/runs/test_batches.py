"""Several clips at once: what becomes of each is as if it were alone, and nobody waits for another."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.fake_captioner import TEXT, FakeCaptioner, FakeReader
from tests.runs.jobs import jobs_of
from vidspec.config.run_spec import RunSpec
from vidspec.errors import VideoError
from vidspec.events.observer import RunObserver
from vidspec.runs.executors.local import caption_locally
from vidspec.runs.feed import Feed
from vidspec.runs.run import caption_jobs

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("good", "bug", "good", "missing", "good", "differs", "lost", "good")


class Files(FakeReader):
    """``broken.mp4`` cannot be read, ``hang.mp4`` not before the end; counts what was asked."""

    def __init__(self, timeout=None, stall=60.0):
        super().__init__(timeout, stall)
        self.asked, self.ended = [], threading.Event()

    def read(self, path, start, end, video, check=None):
        self.asked.append(path)
        if path.endswith("hang.mp4"):
            self.ended.wait(300)
        if path.endswith(("hang.mp4", "broken.mp4")):
            raise VideoError(f"{path}: broken", kind="truncated")

    def close(self):
        self.ended.set()


def captioned(captioner, names, how, observer=None, readers=None):
    readers = readers or [Files() for _ in range(1 if how.batch == 1 else 2)]
    return list(caption_locally(captioner, jobs_of(*names), how, observer, readers, total=len(names)))


@pytest.mark.parametrize("batch", [1, 4, None])
def test_what_becomes_of_a_clip_is_as_if_it_were_alone(captioner, batch):
    names = [f"{number}/{kind}.mp4" for number, kind in enumerate(KINDS * 3)]
    found = captioned(captioner, names, RunSpec(batch=batch or "auto", verify=True))
    assert sorted(one.path for one in found) == sorted(names)
    assert captioner.client.most == 1 if batch == 1 else 1 < captioner.client.most <= 4
    for one in found:
        (alone,) = captioned(FakeCaptioner(captioner.client.profile), [one.path], RunSpec(verify=True))
        assert alone.caption.to_dict() == one.caption.to_dict() and type(alone.error) is type(one.error)


def test_observers_see_clips_side_by_side(captioner):
    seen = {}
    loads = []

    class Watching(RunObserver):
        def begin(self, number, path, total):
            assert number not in seen and total == 3
            seen[number] = [path]

        def event(self, number, event):
            seen[number].append(type(event).__name__)

        def load(self, load):
            loads.append(load.clips)

        def end(self, number, caption):
            seen[number].append(caption.caption)

    captioned(captioner, ["good.mp4", "broken.mp4", "2/good.mp4"], RunSpec(batch=4), Watching())
    rounds = ["Opened", "Prefilled", "Round", "InputsReleased", "Round", "Finished"]
    assert sorted(map(tuple, seen.values()), key=str) == sorted(
        [("good.mp4", *rounds, TEXT), ("broken.mp4", None), ("2/good.mp4", *rounds, TEXT)], key=str
    )
    assert loads and max(loads) <= 4


@pytest.mark.parametrize("batch", [1, 4])
def test_outcomes_of_segments_come_in_their_order(captioner, monkeypatch, batch):
    """Whichever is captioned first: here the last one."""

    class Thirds(Files):
        def segments(self, path, segment, start, end):
            return [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]

    stream = FakeCaptioner.stream

    def backwards(self, path, *, start=None, **more):
        events = list(stream(self, path, start=start, **more))
        return iter([*events[:1] * int(4 - start), *events[1:]])

    monkeypatch.setattr(FakeCaptioner, "stream", backwards)
    ended = []

    class Watching(RunObserver):
        def end(self, number, caption):
            ended.append(number)

    how = RunSpec(segment=1.0, batch=batch)
    found = captioned(captioner, ["a/good.mp4", "b/good.mp4"], how, Watching(), [Thirds()])
    for path in ("a/good.mp4", "b/good.mp4"):
        works = [one for one in found if one.path == path]
        assert [work.segment for work in works] == [0, 1, 2] and [work.is_last for work in works] == [
            False,
            False,
            True,
        ]
    assert (ended == sorted(ended)) == (batch == 1)


def test_a_hanging_file_stalls_nobody(captioner):
    names = ["hang.mp4", *(f"{number}/good.mp4" for number in range(20))]
    with closing(Feed(jobs_of(*names), RunSpec(), captioner.client.profile, [Files(), Files()])) as feed:
        found = caption_jobs(captioner, feed, RunSpec())
        assert {next(found).path for _ in range(20)} == set(names[1:])
        found.close()


def test_clips_that_cannot_be_read_are_heard_of_before_the_rest_is_read(captioner):
    """With nothing to caption the run must still get its turn: --fail-fast is to end it."""
    readers = [Files(), Files()]
    names = [f"{number}/broken.mp4" for number in range(500)]
    with closing(Feed(jobs_of(*names), RunSpec(), captioner.client.profile, readers)) as feed:
        found = caption_jobs(captioner, feed, RunSpec())
        assert isinstance(next(found).error, VideoError)
        assert sum(len(reader.asked) for reader in readers) < 50
        assert len(list(found)) == 499


def test_a_captioner_that_ends_too_soon_is_a_bug(captioner):
    captioner.client.serve = lambda *_, **__: iter(())
    with pytest.raises(RuntimeError, match="before it had taken a clip"):
        captioned(captioner, ["good.mp4", "2/good.mp4"], RunSpec())


@pytest.mark.full
def test_a_folder_with_many_broken_files(tmp_path, monkeypatch, capsys):
    from vidspec.cli import main

    broken = [number for number in range(100) if number % 5 in (1, 3)]
    for number in range(100):
        path = tmp_path / "clips" / f"{number:02}" / ("broken.mp4" if number in broken else "good.mp4")
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("vidspec.runs.executors.local.ClipReader", Files)
    monkeypatch.setattr("vidspec.captioner.Captioner", FakeCaptioner)
    assert main(["caption", "clips", "--format", "jsonl", "-o", "out.jsonl"]) == 1
    records = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [int(Path(one["path"]).parent.name) for one in records] == list(range(100)), "a file is in order in the end"
    assert [number for number, one in enumerate(records) if one["error"]] == broken
    assert all(one["path"] in one["error"]["message"] for one in records if one["error"])
    said = capsys.readouterr().err
    assert said.count("error: clips/") == 40 and "60 captioned, 40 failed (decode_video/truncated 40)" in said


SLOW = """
import sys, time
sys.path.insert(0, sys.argv[1])
from types import ModuleType
from tests.fake_captioner import FakeCaptioner
from tests.runs.test_batches import Files
import vidspec.runs.executors.local
vidspec.runs.executors.local.ClipReader = Files
module = sys.modules["vidspec.captioner"] = ModuleType("vidspec.captioner")

class SlowStream(FakeCaptioner):
    def stream(self, path, **asked):
        for event in super().stream(path, **asked):
            time.sleep(0.01)
            yield event

module.Captioner = SlowStream
from vidspec.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.full
def test_ctrl_c_ends_at_once_and_keeps_what_is_finished(tmp_path):
    """While four clips are captioned and a file hangs; neither that nor the other clips are waited for."""
    for number in range(200):
        path = tmp_path / "clips" / f"{number:03}" / ("hang.mp4" if number == 2 else "good.mp4")
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-c", SLOW, str(ROOT), "caption", "clips", "--format", "jsonl", "-o", "out.jsonl"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as ran:
        out = tmp_path / "out.jsonl"
        while not out.exists() or out.read_bytes().count(b"\n") < 6:
            assert ran.poll() is None
            time.sleep(0.01)
        ran.send_signal(signal.SIGINT)
        _, said = ran.communicate(timeout=120)  # the file hangs for longer
        assert ran.returncode == 130
    done = [json.loads(line)["path"] for line in out.read_text().splitlines()]
    counted = re.search(r"interrupted: (\d+) of 200 clips done and kept", said)
    assert counted and len(done) == int(counted[1]) and "Traceback" not in said
    assert 6 <= len(done) < 199 and not any("hang" in path for path in done)
