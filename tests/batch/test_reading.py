import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from fake_captioner import TEXT, FakeCaptioner

from vidspec.batch import ahead as ahead_module
from vidspec.batch.ahead import ahead, works_of
from vidspec.batch.bulk import Tally, execute
from vidspec.batch.identity import Content
from vidspec.batch.local import outcomes
from vidspec.batch.plan import Plan
from vidspec.batch.reader import Reader
from vidspec.batch.run import run
from vidspec.batch.segments import fixed, parse_segment
from vidspec.batch.work import Entry, How, Task
from vidspec.embedded.samples import shipped
from vidspec.errors import GenerationError, UsageError, VideoError
from vidspec.video import read

CLIP = str(shipped()[0])
VIDEO = {"frames": 3, "max_pixels": 64}


@pytest.fixture
def reader():
    made = Reader()
    yield made
    made.close()


def test_frames_come_over_as_they_are_read(reader):
    clip, here = reader.read(CLIP, 1.0, 3.0, VIDEO), read(CLIP, start=1.0, end=3.0, **VIDEO)
    assert np.array_equal(clip.frames, here.frames) and np.array_equal(clip.timestamps, here.timestamps)
    assert clip.facts == here.facts and clip.frames.dtype == np.uint8


def test_errors_come_over_with_their_kinds(reader, tmp_path):
    with pytest.raises(VideoError) as caught:
        reader.read(str(tmp_path / "no.mp4"), None, None, VIDEO)
    assert (caught.value.kind, caught.value.stage) == ("missing", "decode_video")
    with pytest.raises(UsageError, match="exclude each other"):
        reader.read(CLIP, None, None, {"frames": 3, "fps": 2.0})
    assert len(reader.read(CLIP, None, None, VIDEO)) == 3, "it goes on after errors"


def test_the_reader_loads_no_torch(reader):
    reader.start()
    reader.read(CLIP, None, None, VIDEO)
    with open(f"/proc/{reader._process.pid}/maps") as file:
        assert "libtorch" not in file.read()


def test_single_clips_are_read_by_it_too(monkeypatch):
    slow = Slow()
    monkeypatch.setattr("vidspec.batch.local.Reader", lambda timeout: slow)
    (outcome,) = outcomes(FakeCaptioner(SimpleNamespace(name="x")), tasks("good.mp4"), How())
    assert slow.asked == ["good.mp4"] and slow.closed and outcome.error is None


def test_a_captioners_objection_is_the_clips_error(reader):
    def refuse(path, prompt, frames, height, width):
        raise GenerationError(f"{path}: {prompt} {frames}", kind="context")

    (work,) = works_of(Task(Entry(CLIP, prompt="Why?"), 1), How(video=VIDEO), reader, None, refuse)
    assert work.clip is None and str(work.error) == f"{CLIP}: Why? 3"


def test_a_reader_that_dies_is_named_and_replaced(reader):
    reader.read(CLIP, None, None, VIDEO)
    first = reader._process
    os.kill(first.pid, 9)
    first.wait()
    with pytest.raises(VideoError, match="ended by SIGKILL") as caught:
        reader.read(CLIP, None, None, VIDEO)
    assert caught.value.kind == "crashed"
    assert len(reader.read(CLIP, None, None, VIDEO)) == 3 and reader._process.pid != first.pid


def test_a_reader_that_hangs_is_killed(monkeypatch):
    reader = Reader()
    reader.read(CLIP, None, None, VIDEO)
    reader.timeout = 0.3
    os.kill(reader._process.pid, 19)  # SIGSTOP: as a decoder that never returns
    hung = reader._process
    with pytest.raises(VideoError, match=r"not read within 0.3 s") as caught:
        reader.read(CLIP, None, None, VIDEO)
    assert caught.value.kind == "timeout" and hung.poll() is not None
    reader.close()


def test_the_reader_ends_with_its_parent():
    code = (
        "import os, sys; from vidspec.batch.reader import Reader; r = Reader();"
        f"r.read({CLIP!r}, None, None, {{'frames': 1}}); print(r._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    child = int(ran.stdout)
    for _ in range(200):
        if not alive(child):
            return
        time.sleep(0.05)
    pytest.fail("the reader outlived its parent")


def alive(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Slow:
    """Reads 1000 bytes at once, and notes what it was asked."""

    def __init__(self, size=1000):
        self.size, self.asked, self.closed = size, [], False

    def read(self, path, start, end, video, check=None):
        self.asked.append(path)
        if path == "bad":
            raise VideoError("bad")
        return SimpleNamespace(frames=np.zeros(self.size, np.uint8))

    def segments(self, path, segment, start, end):
        return [(0.0, 2.0), (2.0, 4.0), (4.0, 5.0)]

    def close(self):
        self.closed = True


def tasks(*names):
    return [Task(Entry(name), number) for number, name in enumerate(names, start=1)]


def settled(slow):
    """What was read once nothing more is."""
    count = -1
    while count != len(slow.asked):
        count = len(slow.asked)
        time.sleep(0.1)
    return count


@pytest.mark.parametrize(("how", "most", "read"), [(2, 1 << 30, 3), (5, 1 << 30, 6), (5, 2500, 4), (5, 10, 2)])
def test_no_more_is_read_ahead_than_allowed(how, most, read):
    slow = Slow()
    works = ahead(tasks(*map(str, range(20))), How(ahead=how), slow, most_bytes=most)
    first = next(works)
    assert first.path == "0" and settled(slow) == read
    assert [work.path for work in works] == [str(number) for number in range(1, 20)]
    assert slow.closed


def test_preprocessing_is_done_ahead_and_counts(monkeypatch):
    prepared = []

    def prepare(clip):
        prepared.append(clip)
        if len(prepared) == 2:
            raise MemoryError
        return 500

    works = list(ahead(tasks("a", "b", "bad", "c"), How(), Slow(), prepare))
    assert [work.clip is not None for work in works] == [True, True, False, True] and len(prepared) == 3
    assert [work.held for work in works] == [1500, 1000, 0, 1500]
    monkeypatch.setattr("vidspec.batch.local.Reader", lambda timeout: Slow())
    captioner = FakeCaptioner(SimpleNamespace(name="x"))
    captioner.prepare = prepare
    list(outcomes(captioner, tasks("good.mp4", "2/good.mp4"), How()))
    assert [asked["clip"] for asked in captioner.asked] == prepared[3:]


def test_closing_ends_the_reading():
    slow = Slow()
    works = ahead(tasks(*map(str, range(20))), How(ahead=2), slow)
    next(works)
    works.close()
    assert slow.closed and settled(slow) <= 4
    assert not [one for one in threading.enumerate() if one.name == "read-ahead"]


def test_frames_are_let_go_clip_by_clip(settings):
    """Of captioned clips, and of failed ones, whose errors would hold on to them."""
    alive = []

    class Counted(Slow):
        def read(self, path, start, end, video, check=None):
            clip = super().read(path, start, end, video)
            alive.append(weakref.ref(clip.frames))
            return clip

    class Kept:
        def add(self, entry, record):
            gc.collect()
            assert sum(one() is not None for one in alive) <= 3

    captioner = FakeCaptioner(SimpleNamespace(name="x"))
    captioner.asked = SimpleNamespace(append=lambda asked: None)  # it would remember the frames
    names = [f"{number}/{kind}.mp4" for number in range(6) for kind in ("good", "bug", "differs")]
    todo = Plan(tasks(*names), {number: Content(1, 2) for number in range(1, 19)})
    how = How(verify=True, ahead=1)

    def engine(todo):
        return run(captioner, ahead(todo, how, Counted()), how)

    assert execute(todo, engine, Kept(), settings, Tally(total=18)) == 1
    assert len(alive) == 18


def test_errors_of_clips_are_works_and_bugs_are_raised(monkeypatch):
    bad, good = ahead(tasks("bad", "good"), How(), Slow())
    assert isinstance(bad.error, VideoError) and good.clip is not None

    def broken(*_):
        raise TypeError("bug")
        yield

    monkeypatch.setattr(ahead_module, "works_of", broken)
    with pytest.raises(TypeError, match="bug"):
        list(ahead(tasks("good"), How(), Slow()))


def test_segments_that_are_done_are_not_read():
    task = Task(Entry("a", start=None), 1, {0: "first", 2: None})
    (work,) = works_of(task, How(segment=2.0), Slow())
    assert (work.segment, work.segments, work.start, work.end, work.previous, work.last) == (
        1,
        3,
        2.0,
        4.0,
        "first",
        True,
    )


def test_context_quotes_the_segment_before(monkeypatch):
    monkeypatch.setattr("vidspec.batch.local.Reader", lambda timeout: Slow())
    captioner = FakeCaptioner(SimpleNamespace(name="x"))
    how = How(prompt="Describe.", segment=2.0, context=True)
    done = list(outcomes(captioner, tasks("good.mp4", "other/good.mp4"), how))
    prompts = [asked.get("prompt") for asked in captioner.asked]
    assert [prompt is None for prompt in prompts] == [True, False, False] * 2, "context crossed from clip to clip"
    assert prompts[1].startswith("Describe.\n\n") and TEXT in prompts[1]
    assert [outcome.work.last for outcome in done] == [False, False, True] * 2


def test_a_caption_that_takes_too_long_fails(monkeypatch):
    monkeypatch.setattr("vidspec.batch.local.Reader", lambda timeout: Slow())
    now = iter(range(0, 1000, 3))
    monkeypatch.setattr("vidspec.batch.run.time", SimpleNamespace(monotonic=lambda: float(next(now))))
    captioner = FakeCaptioner(SimpleNamespace(name="x"))
    (outcome,) = outcomes(captioner, tasks("good.mp4"), How(timeout=5.0))
    assert outcome.caption.error["kind"] == "timeout" and "not captioned within 5 s" in str(outcome.error)


@pytest.mark.parametrize(
    ("length", "start", "end", "cuts"),
    [
        (5, 0, 12, [0, 5, 10, 12]),
        (5, 0, 15, [0, 5, 10, 15]),
        (5, 0, 15.4, [0, 5, 10, 15.4]),
        (5, 0, 15.6, [0, 5, 10, 15, 15.6]),
        (5, 2, 8, [2, 7, 8]),
        (5, 0, 0.1, [0, 0.1]),
    ],
)
def test_fixed_segments(length, start, end, cuts):
    assert fixed(length, start, end) == list(pairwise(cuts))


def test_segments_of_a_clip(reader):
    duration = read(CLIP, frames=1).facts.duration_s
    found = reader.segments(CLIP, 5.0, 1.0, None)
    assert found[0] == (1.0, 6.0) and found[-1][1] == pytest.approx(duration, abs=1e-3)
    with pytest.raises(VideoError) as caught:
        reader.segments(CLIP, 5.0, 99.0, None)
    assert caught.value.kind == "range"


@pytest.mark.parametrize("text", ["0", "-3s", "x", "nan", ""])
def test_what_is_no_segment(text):
    with pytest.raises(UsageError, match="must be scenes or a length"):
        parse_segment(text)


def test_scenes_are_cut_where_the_picture_changes(tmp_path):
    pytest.importorskip("scenedetect")
    import av

    from vidspec.batch.segments import cut

    path = str(tmp_path / "cuts.mp4")
    with av.open(path, "w") as file:
        stream = file.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for shade in (0, 255, 90):
            for _ in range(30):
                picture = np.full((64, 64, 3), (shade, 255 - shade, shade), np.uint8)
                file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))
    assert cut(path, "scenes", None, None) == [(0.0, 3.0), (3.0, 6.0), (6.0, 9.0)]
    assert cut(path, "scenes", 4.0, 7.0) == [(4.0, 6.0), (6.0, 7.0)]
    assert cut(CLIP, "scenes", None, None) == [(0.0, pytest.approx(read(CLIP, frames=1).facts.duration_s, abs=1e-3))]
