import gc
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import av
import numpy as np
import pytest

from tests.fake_captioner import TEXT, FakeCaptioner, FakeReader, profile_of
from tests.runs.jobs import jobs_of
from tests.runs.reader_memory import private
from tests.video import clips
from vidspec.config.run_spec import RunSpec
from vidspec.config.values import parse_segment
from vidspec.embedded.samples import shipped
from vidspec.errors import GenerationError, UsageError, VideoError
from vidspec.events.observer import RunObserver
from vidspec.events.tally import Tally
from vidspec.runs.executors.local import caption_locally
from vidspec.runs.feed import Feed, reader_count
from vidspec.runs.job import Job
from vidspec.runs.reader import ClipReader, MemoryBudget
from vidspec.runs.remaining import caption_remaining
from vidspec.runs.run_store import RunStore
from vidspec.runs.segments import fixed_segments
from vidspec.runs.store.records import FileContent
from vidspec.video import Clip, read

CLIP = str(shipped()[0])
VIDEO = {"frames": 3, "max_pixels": 64}
PROFILE = profile_of(**VIDEO)


def test_frames_come_over_as_they_are_read(reader):
    clip, here = reader.read(CLIP, 1.0, 3.0, VIDEO), read(CLIP, start=1.0, end=3.0, **VIDEO)
    assert np.array_equal(clip.frames, here.frames) and np.array_equal(clip.timestamps, here.timestamps)
    assert clip.facts == here.facts and clip.frames.dtype == np.uint8


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: it reads /proc")
def test_a_reader_keeps_no_memory_of_its_clips(reader):
    video = {"frames": 2, "fps": None, "max_pixels": None, "decoder": "auto"}

    def read_clips(count):
        for number in range(count):
            path = str(shipped()[number % len(shipped())])
            reader.read(path, None, None, video)
            reader.segments(path, 1e9, None, None)
        time.sleep(0.2)  # it cleans up after its answer
        return private(reader._child.pid)

    warm, until = read_clips(4), time.monotonic() + 60
    grown = read_clips(60) - warm
    while grown >= 3 << 20 and time.monotonic() < until:
        time.sleep(0.2)
        grown = private(reader._child.pid) - warm
    assert grown < 3 << 20


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux has memory of several processes by a number")
def test_frames_are_not_copied_and_leave_the_reader_with_their_clip(reader):
    def mapped(pid="self"):
        with open(f"/proc/{pid}/maps") as file:
            return {line.split("-")[0] for line in file if "memfd:vidspec" in line}

    gc.collect()
    before = mapped()  # of clips that other tests still hold
    clip = reader.read(CLIP, 1.0, 3.0, {"frames": 30})
    (here,) = mapped() - before
    until = time.monotonic() + 60
    while (shared := mapped(reader._child.pid)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not shared and clip.frames.any()
    del clip
    assert here not in mapped()


@pytest.mark.full
def test_frames_come_over_where_no_memory_is_shared(monkeypatch, tmp_path):
    """As on macOS and Windows."""
    (tmp_path / "sitecustomize.py").write_text("import os; vars(os).pop('memfd_create', None)", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    with closing(ClipReader()) as reader:
        clip, here = reader.read(CLIP, 1.0, 3.0, VIDEO), read(CLIP, start=1.0, end=3.0, **VIDEO)
    assert np.array_equal(clip.frames, here.frames) and np.array_equal(clip.timestamps, here.timestamps)


@pytest.mark.full
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
    with open(f"/proc/{reader._child.pid}/maps") as file:
        assert "libtorch" not in file.read()


def test_single_clips_are_read_by_it_too(monkeypatch):
    slow = SlowReader()
    monkeypatch.setattr("vidspec.runs.executors.local.ClipReader", lambda timeout, stall: slow)
    (outcome,) = caption_locally(FakeCaptioner(), jobs_of("good.mp4"), RunSpec())
    assert slow.asked == ["good.mp4"] and slow.closed and outcome.error is None


@pytest.mark.parametrize("seconds", [None, 12.0])
def test_sound_is_read_for_a_captioner_with_audio_input(monkeypatch, seconds):
    """And for no other: damage to sound that is not read is no error."""
    asked, slow = [], SlowReader()
    monkeypatch.setattr(slow, "read", lambda path, start, end, video, check=None: asked.append(video))
    captioner = FakeCaptioner(PROFILE)
    inputs = captioner.client.inputs
    inputs.max_sound_s, inputs.gpu = seconds, 1
    list(caption_locally(captioner, jobs_of("good.mp4"), RunSpec(), readers=[slow]))
    assert asked == [{**PROFILE.video.arguments, "sound": seconds, "gpu": 1}]


@pytest.mark.full
def test_a_captioners_objection_is_the_clips_error(reader):
    def refuse(path, prompt, frames, height, width):
        raise GenerationError(f"{path}: {prompt} {frames}", kind="context")

    (work,) = works([Job(CLIP, prompt="Why?", number=1)], RunSpec(), reader, refuse=refuse)
    assert work.request is None and str(work.job.error) == f"{CLIP}: Why? 3"


def test_a_reader_that_dies_is_named_and_replaced(reader):
    reader.read(CLIP, None, None, VIDEO)
    first = reader._child
    os.kill(first.pid, 9)
    first.process.wait()
    with pytest.raises(VideoError, match=r"ended \(SIGKILL\)") as caught:
        reader.read(CLIP, None, None, VIDEO)
    assert caught.value.kind == "crashed"
    assert len(reader.read(CLIP, None, None, VIDEO)) == 3 and reader._child.pid != first.pid


def dying(monkeypatch, starts):
    """The first so many processes that read clips die before they are ready; returns all that were started."""
    popen, started = subprocess.Popen, []

    def start(command, **more):
        if len(started) < starts:
            command = [sys.executable, "-c", "import sys; sys.exit(7)"]
        started.append(popen(command, **more))
        return started[-1]

    monkeypatch.setattr("vidspec.process.subprocess.Popen", start)
    return started


@pytest.mark.full
def test_a_reader_that_dies_while_it_starts_is_started_again(monkeypatch, reader):
    started = dying(monkeypatch, 1)
    reader.start()
    assert len(reader.read(CLIP, None, None, VIDEO)) == 3 and len(started) == 2


@pytest.mark.full
def test_a_reader_that_never_starts_costs_the_clip_and_not_the_run(monkeypatch, reader):
    started = dying(monkeypatch, 2)
    first, second = works(jobs_of(CLIP, CLIP), RunSpec(), reader)
    error = first.job.error
    assert error.kind == "crashed" and second.request.clip is not None and len(started) == 3
    assert "ended (exit code 7) while it started, 2 times" in str(error) and CLIP in str(error)


def test_a_reader_that_hangs_is_killed(monkeypatch):
    reader = ClipReader()
    reader.read(CLIP, None, None, VIDEO)
    reader.timeout = 0.3
    os.kill(reader._child.pid, 19)  # SIGSTOP: as a decoder that never returns
    hung = reader._child
    with pytest.raises(VideoError, match=r"not read within 0.3 s") as caught:
        reader.read(CLIP, None, None, VIDEO)
    assert caught.value.kind == "timeout" and not hung.alive
    reader.close()


HANGING = """
import time
import vidspec.video.decode_av as decode_av

groups, decode_all = [], decode_av.decode_all

def hanging(*args, **options):
    groups.append(1)
    if len(groups) == 3:
        time.sleep(600)
    yield from decode_all(*args, **options)

decode_av.decode_all = hanging
"""


@pytest.mark.full
def test_a_group_of_frames_that_hangs_is_one_error_of_its_clip(monkeypatch, tmp_path):
    """Its process decodes several groups at a time, and ends with all of them."""
    path = clips.make(tmp_path / "a.mp4", pts=60, options={"x264-params": "keyint=10:min-keyint=10:scenecut=0"})
    (tmp_path / "sitecustomize.py").write_text(HANGING, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    with closing(ClipReader(timeout=4.0)) as reader:
        with pytest.raises(VideoError, match=r"a\.mp4: not read within 4 s") as caught:
            reader.read(str(path), None, None, {"frames": 6})
        assert caught.value.kind == "timeout" and "\n" not in str(caught.value)
        reader.timeout = 60.0
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        assert len(reader.read(str(path), None, None, {"frames": 6})) == 6


SLOW = """
import time
import vidspec.video.packets as packets

packets_of = packets.packets_of

def slowly(container, stream):
    for number, packet in enumerate(packets_of(container, stream)):
        time.sleep(SECONDS if number == AT else 0.1)
        yield packet

packets.packets_of = slowly
"""


@pytest.fixture
def slow_storage(monkeypatch, tmp_path):
    """Readers that are started now wait before each packet, and before number ``at`` for so many seconds."""

    def begin(at, seconds):
        code = f"AT, SECONDS = {at}, {seconds}\n{SLOW}"
        (tmp_path / "sitecustomize.py").write_text(code, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))

    yield begin
    (tmp_path / "sitecustomize.py").unlink(missing_ok=True)


@pytest.mark.full
def test_a_reader_that_makes_no_progress_is_killed_and_replaced(slow_storage, tmp_path):
    """Without any --timeout."""
    path = str(clips.make(tmp_path / "a.mp4", pts=12))
    slow_storage(at=5, seconds=600)
    with closing(ClipReader(stall=1.0)) as reader:
        with pytest.raises(VideoError, match=r"a\.mp4: no packet and no frame came for 1 s") as caught:
            reader.read(path, None, None, VIDEO)
        assert caught.value.kind == "stalled" and "--stall" in str(caught.value.hint)
        slow_storage(at=5, seconds=0)
        reader.stall = 60.0
        assert len(reader.read(path, None, None, VIDEO)) == 3


@pytest.mark.full
def test_a_slow_reader_is_not_killed_while_it_makes_progress(slow_storage, tmp_path):
    path = str(clips.make(tmp_path / "a.mp4", pts=60))
    slow_storage(at=5, seconds=0)
    with closing(ClipReader(stall=5.0)) as reader:
        reader.start()
        began = time.monotonic()
        assert len(reader.read(path, None, None, VIDEO)) == 3
    assert time.monotonic() - began > 6.0


@pytest.mark.full
def test_time_in_which_nothing_is_asked_of_a_reader_does_not_count(reader):
    """A captioner may take its time to say whether it takes a clip."""
    reader.read(CLIP, None, None, VIDEO)
    reader.stall = 3.0
    assert len(reader.read(CLIP, None, None, VIDEO, lambda *shape: time.sleep(3.5))) == 3


def test_readers_take_turns_with_pictures_that_are_too_large_for_several(monkeypatch):
    """Waiting for the other does not count as its time."""
    budget = MemoryBudget(100)
    order = queue.Queue()

    def large(name, size):
        with budget.share() as take:
            take(size)
            order.put((name, budget.taken))

    with budget.share() as take:
        take(70)
        take(70)  # the same clip, indexed anew
        threads = [threading.Thread(target=large, args=(size, size)) for size in (20, 500)]
        for thread in threads:
            thread.start()
        assert order.get(timeout=60) == (20, 90) and budget.taken <= 90
        time.sleep(0.1)
        assert order.empty()
    assert order.get(timeout=60) == (500, 500), "more than all is given to one alone"
    for thread in threads:
        thread.join(60)
    assert not budget.taken


@pytest.mark.full
def test_waiting_for_memory_is_not_reading(reader, tmp_path, monkeypatch):
    from vidspec.runs import reader as module

    path = tmp_path / "large.mp4"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 2560, 1664, "yuv420p"
        picture = av.VideoFrame.from_ndarray(np.zeros((1664, 2560, 3), np.uint8), "rgb24")
        out.mux(stream.encode(picture))
        out.mux(stream.encode(None))
    budget, asks, later, clock = module.MemoryBudget(1), threading.Event(), [0.0], time.monotonic
    wait_for = budget._changed.wait_for
    monkeypatch.setattr(budget._changed, "wait_for", lambda free: asks.set() or wait_for(free))
    monkeypatch.setattr(module, "_BUDGET", budget)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock() + later[0]))
    reader.read(CLIP, None, None, VIDEO)
    reader.timeout = 60.0
    with budget.share() as take:
        take(1)
        asks.clear()
        got = queue.Queue()
        waiting = threading.Thread(target=lambda: got.put(reader.read(str(path), None, None, {"frames": 1})))
        waiting.start()
        assert asks.wait(60)
        later[0] = 1000.0  # seconds
        assert got.empty() and len(read(CLIP, frames=1)) == 1
    assert len(got.get(timeout=60)) == 1
    waiting.join(60)
    assert not budget.taken


def test_the_reader_ends_with_its_parent():
    code = (
        "import os, sys; from vidspec.runs.reader import ClipReader; r = ClipReader();"
        f"r.read({CLIP!r}, None, None, {{'frames': 1}}); print(r._child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    child = int(ran.stdout)
    for _ in range(1200):
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


class SlowReader(FakeReader):
    """Reads 1000 bytes at once, and notes what it was asked; ``bad`` fails, ``hang`` waits for the end."""

    def __init__(self, size=1000):
        super().__init__()
        self.size, self.asked, self.closed, self.ended = size, [], False, threading.Event()

    def read(self, path, start, end, video, check=None):
        self.asked.append(path)
        if path.endswith("bad"):
            raise VideoError("bad")
        if path.endswith("hang"):
            self.ended.wait(120)
            raise VideoError("ended")
        return Clip(np.zeros(self.size, np.uint8), np.zeros(0), None)

    def segments(self, path, segment, start, end):
        if path.endswith("uncut"):
            raise VideoError("uncut")
        return [(0.0, 2.0), (2.0, 4.0), (4.0, 5.0)]

    def close(self):
        self.closed = True
        self.ended.set()


def taken(feed):
    """The next piece of a feed; None where it is over."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        over = feed.over
        work = feed.take()
        if work is not None or over:
            return work
        feed.wake.wait(0.1)
    pytest.fail("nothing came")


def works(todo, how, *readers, **more):
    """All pieces in the order in which they come, each finished when it has come."""
    with closing(Feed(todo, how, PROFILE, readers, **more)) as feed:
        while (work := taken(feed)) is not None:
            yield replace(work)
            feed.release(work)


def settled(slow, least):
    """Return the clips read once reading has stopped, at least so many."""
    count, until = -1, time.monotonic() + 60
    while (count != len(slow.asked) or count < least) and time.monotonic() < until:
        count = len(slow.asked)
        time.sleep(0.1)
    return count


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize(("ahead", "most", "read"), [(2, 1 << 30, 3), (5, 1 << 30, 6), (5, 2500, 2), (5, 10, 1)])
@pytest.mark.parametrize("readers", [1, 2])
def test_no_more_is_read_than_may_wait_and_than_memory_is_allowed(ahead, most, read, readers):
    slow = SlowReader()
    with closing(
        Feed(jobs_of(*map(str, range(20))), RunSpec(ahead=ahead), PROFILE, [slow] * readers, max_bytes=most)
    ) as feed:
        first = taken(feed)
        assert read <= settled(slow, read) <= read + readers - 1
        assert feed.nbytes <= max(most, 1000 * readers)
        feed.release(first)
        paths = {first.job.path}
        while (work := taken(feed)) is not None:
            assert feed.nbytes <= max(most, 1000 * readers)
            feed.release(work)
            paths.add(work.job.path)
    assert paths == set(map(str, range(20))) and slow.closed


@pytest.mark.full
def test_what_is_in_work_counts_until_it_is_finished():
    """300 tiny clips, taken at once and finished late: no more are held than memory is allowed for."""
    slow = SlowReader()
    with closing(Feed(jobs_of(*map(str, range(300))), RunSpec(ahead=4), PROFILE, [slow, slow], max_bytes=8000)) as feed:
        inside, done, most = deque(), 0, 0
        while not feed.over:
            if (work := feed.take()) is not None:
                inside.append(work)
            elif inside:
                feed.release(inside.popleft())
                done += 1
            most = max(most, feed.nbytes)
        assert done + len(inside) == 300 and 4000 <= most <= 8000


def test_what_the_models_have_seen_makes_room():
    """All of 20 clips are in work at once, with memory allowed for one."""
    slow = SlowReader()
    with closing(Feed(jobs_of(*map(str, range(20))), RunSpec(ahead=4), PROFILE, [slow], max_bytes=1000)) as feed:
        for number in range(20):
            work = taken(feed)
            assert work.job.path == str(number) and feed.nbytes == 1000 and work.request.reread is not None
            feed.mark_encoded(work)
            assert work.request is None
        assert feed.nbytes == 0


@pytest.mark.parametrize("more", [{"verify": True}, {"baseline": True}, {"turn": ("What?",)}])
def test_frames_that_are_needed_later_stay(more):
    (work,) = works(jobs_of("a"), RunSpec(**more), SlowReader())
    assert work.request.reread is None and work.request.without_pixels().clip is work.request.clip


@pytest.mark.full
def test_frames_are_read_again_from_the_file():
    (work,) = works(jobs_of(CLIP), RunSpec(), SlowReader())
    bare = work.request.without_pixels()
    assert len(bare.clip) == len(work.request.clip) and not bare.clip.frames.size
    assert np.array_equal(bare.reread().frames, read(CLIP, **VIDEO).frames)


def test_one_reader_hands_over_in_order_and_several_what_is_ready():
    assert [work.job.path for work in works(jobs_of("a", "b", "c"), RunSpec(), SlowReader())] == ["a", "b", "c"]
    slow = SlowReader()
    with closing(Feed(jobs_of("hang", *"abcdefgh"), RunSpec(ahead=3), PROFILE, [slow, slow])) as feed:
        for name in "abcdefgh":
            work = taken(feed)
            assert work.job.path == name
            feed.release(work)
        assert feed.take() is None and not feed.over
        slow.ended.set()
        assert isinstance(taken(feed).job.error, VideoError) and feed.over


def test_readers_by_what_they_are_worth(monkeypatch):
    for cores, readers in ((1, 2), (2, 2), (8, 4), (64, 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        assert (
            reader_count(RunSpec(), 100) == reader_count(RunSpec()) == reader_count(RunSpec(segment=2.0), 1) == readers
        )
        assert reader_count(RunSpec(), 1) == reader_count(RunSpec(batch=1), 100) == 1


def test_preprocessing_is_done_ahead_and_counts(monkeypatch):
    prepared = []

    def prepare(clip):
        prepared.append(clip)
        if len(prepared) == 2:
            raise MemoryError
        return 500

    sizes, found = [], []
    with closing(
        Feed(jobs_of("a", "b", "bad", "c"), RunSpec(ahead=1), PROFILE, [SlowReader()], prepare=prepare)
    ) as feed:
        while (work := taken(feed)) is not None:
            before = feed.nbytes
            found.append(work.request)
            feed.release(work)
            sizes.append(before - feed.nbytes)
    assert [request is not None for request in found] == [True, True, False, True] and len(prepared) == 3
    assert sizes == [1500, 1000, 0, 1500]
    monkeypatch.setattr("vidspec.runs.executors.local.ClipReader", lambda timeout, stall: SlowReader())
    captioner = FakeCaptioner()
    captioner.client.inputs.vision.prepare = prepare
    list(caption_locally(captioner, jobs_of("good.mp4", "2/good.mp4"), RunSpec(batch=1)))
    assert [asked["clip"] for asked in captioner.asked] == prepared[3:] and captioner.client.inputs.vision.started
    list(caption_locally(captioner, jobs_of("good.mp4", "2/good.mp4"), RunSpec(batch=1, baseline=True)))
    assert len(prepared) == 5, "times that are compared must not lack it"


def test_closing_ends_the_reading():
    slow = SlowReader()
    feed = Feed(jobs_of("hang", "hang", *map(str, range(20))), RunSpec(ahead=2), PROFILE, [slow, slow])
    settled(slow, 2)
    feed.close()
    assert slow.closed and len(slow.asked) == 2
    for thread in feed._threads:
        thread.join(60)  # what hangs would end by itself after two minutes
        assert not thread.is_alive()


@pytest.mark.full
def test_frames_are_let_go_clip_by_clip(settings):
    """Captioned clips, and failed ones, whose errors would hold on to frames."""
    alive = []

    class Counted(SlowReader):
        def read(self, path, start, end, video, check=None):
            clip = super().read(path, start, end, video)
            alive.append(weakref.ref(clip.frames))
            return clip

    class Kept(RunStore):
        def add(self, job, record):
            gc.collect()
            assert sum(one() is not None for one in alive) <= 3

    captioner = FakeCaptioner()
    captioner.asked = SimpleNamespace(append=lambda asked: None)  # it would remember the frames
    names = [f"{number}/{kind}.mp4" for number in range(6) for kind in ("good", "bug", "differs")]
    todo = [replace(job, content=FileContent(1, 2)) for job in jobs_of(*names)]
    how = RunSpec(verify=True, ahead=1, batch=1)

    def engine(todo):
        return caption_locally(captioner, todo, how, readers=[Counted()])

    codes = set()
    for _ in caption_remaining(todo, engine, Kept(), *settings, Tally(total=18), RunObserver(), codes):
        pass
    assert codes == {0, 1}
    assert len(alive) == 18


def test_errors_of_clips_are_works_and_bugs_are_raised():
    bad, good = works(jobs_of("bad", "good"), RunSpec(), SlowReader())
    assert isinstance(bad.job.error, VideoError) and good.request.clip is not None
    (uncut,) = works(jobs_of("uncut"), RunSpec(segment=2.0), SlowReader())
    whole = uncut.job
    assert isinstance(whole.error, VideoError) and whole.segment is None and whole.is_last

    def broken():
        raise TypeError("bug")
        yield

    with pytest.raises(TypeError, match="bug"):
        list(works(broken(), RunSpec(), SlowReader()))


class DyingReader(SlowReader):
    """Dies with ``bad`` so often; other clips are read once ``going`` is set. Notes who is read beside ``bad``."""

    def __init__(self, deaths):
        super().__init__()
        self.deaths, self.inside, self.beside, self.going = deaths, [], [], threading.Event()

    def read(self, path, start, end, video, check=None):
        self.inside.append(path)
        self.asked.append(path)
        try:
            if path == "bad":
                self.beside.append([one for one in self.inside if one != "bad"])
                if len(self.beside) <= self.deaths:
                    raise VideoError("the process that read it ended", kind="crashed")
            else:
                self.going.wait(60)
            return Clip(np.zeros(self.size, np.uint8), np.zeros(0), None)
        finally:
            self.inside.remove(path)


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_clip_whose_reader_died_is_tried_once_alone(deaths):
    dying, errors = DyingReader(deaths), {}
    with closing(Feed(jobs_of("a", "b", "bad", *"cdefgh"), RunSpec(ahead=9), PROFILE, [dying] * 3)) as feed:
        assert settled(dying, 3) == 3, "the others go on before it is tried again"
        dying.going.set()
        while (work := taken(feed)) is not None:
            errors[work.job.path] = work.job.error and work.job.error.kind
            feed.release(work)
    assert errors == dict.fromkeys("abcdefgh") | {"bad": "crashed" if deaths == 2 else None}
    assert len(dying.beside) == 2 and dying.beside[1] == []


def test_a_clip_whose_only_reader_died_is_not_tried_again():
    dying = DyingReader(1)
    dying.going.set()
    assert [work.job.path for work in works(jobs_of("a", "bad", "b"), RunSpec(), dying) if work.job.error] == ["bad"]
    assert dying.asked == ["a", "bad", "b"]


def test_tasks_may_be_long_in_coming():
    """One thread waits for the next task; the others read what there is of the last."""
    more = queue.SimpleQueue()
    with closing(Feed(iter(more.get, None), RunSpec(segment=2.0), PROFILE, [SlowReader(), SlowReader()])) as feed:
        assert feed.take() is None and not feed.over
        more.put(Job("a", number=1))
        for _ in range(3):
            feed.release(taken(feed))
        assert feed.take() is None and not feed.over
        more.put(None)
        assert taken(feed) is None and feed.over


def test_segments_that_are_done_are_not_read():
    job = Job("a", done={0: "first", 2: None})
    (read,) = works([job], RunSpec(segment=2.0), SlowReader())
    part = read.job
    assert (part.segment, part.segments, part.start, part.end, part.is_last) == (1, 3, 2.0, 4.0, True)
    assert part.planned_job is job and job.segment is None


def test_of_a_clip_with_context_a_third_segment_is_read_when_one_is_finished():
    """Whatever else there is to read meanwhile."""
    slow = SlowReader()
    config = RunSpec(segment=2.0, context=True)
    with closing(Feed(jobs_of("a", "b"), config, PROFILE, [slow, slow])) as feed:
        inside = sorted((taken(feed) for _ in range(4)), key=lambda work: (work.job.path, work.job.segment))
        assert [(work.job.path, work.job.segment) for work in inside] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
        settled(slow, 4)
        assert feed.take() is None and not feed.over
        for work in inside[:1] + inside[2:3]:
            feed.release(work)
            third = taken(feed)
            assert (third.job.path, third.job.segment, third.job.is_last) == (work.job.path, 2, True)
            feed.release(third)
        assert feed.over


def test_context_quotes_a_segment_of_an_earlier_run(monkeypatch):
    captioner = FakeCaptioner()
    config = RunSpec(segment=2.0, context=True)
    list(caption_locally(captioner, [Job("good.mp4", done={0: "It was so.", 1: None})], config, readers=[SlowReader()]))
    list(caption_locally(captioner, [Job("good.mp4", done={0: None, 1: "It was so."})], config, readers=[SlowReader()]))
    assert [asked.get("prompt") for asked in captioner.asked] == [
        None,  # the segment before failed
        "Describe.\n\nThis is a later part of a longer video. The part before it was described like this: It was so.",
    ]


@pytest.mark.parametrize("batch", [1, 4])
def test_context_quotes_the_segment_before(monkeypatch, batch):
    monkeypatch.setattr("vidspec.runs.executors.local.ClipReader", lambda timeout, stall: SlowReader())
    captioner = FakeCaptioner()
    how = RunSpec(segment=2.0, context=True, batch=batch)
    done = list(caption_locally(captioner, jobs_of("good.mp4", "other/good.mp4", "bug.mp4"), how))
    prompts = {}
    for (_, path, start, _), asked in zip(captioner.calls, captioner.asked, strict=True):
        prompts[path, start] = asked.get("prompt")
    assert [prompts["bug.mp4", start] for start in (0.0, 2.0, 4.0)] == [None] * 3, "a failure is quoted"
    for path in ("good.mp4", "other/good.mp4"):
        assert prompts[path, 0.0] is None, "context crossed from clip to clip"
        assert all(prompts[path, start].startswith("Describe.\n\n") for start in (2.0, 4.0))
        assert TEXT in prompts[path, 2.0]
        mine = [outcome for outcome in done if outcome.path == path]
        assert [work.segment for work in mine] == [0, 1, 2] and [work.is_last for work in mine] == [False, False, True]
    assert captioner.client.most == min(batch, 3)


@pytest.mark.full
def test_a_caption_that_takes_too_long_fails_and_its_neighbours_do_not(monkeypatch):
    monkeypatch.setattr("vidspec.runs.executors.local.ClipReader", lambda timeout, stall: SlowReader())

    clock, later = time.monotonic, [0.0]
    monkeypatch.setattr("tests.fake_captioner.time", SimpleNamespace(monotonic=lambda: clock() + later[0]))

    class Stuck(FakeCaptioner):
        def stream(self, path, **asked):
            for event in super().stream(path, **asked):
                yield event
                while path.startswith("slow/"):
                    yield event

    captioner, found = Stuck(), []
    jobs = jobs_of("a/good.mp4", "slow/good.mp4", "b/good.mp4")
    for one in caption_locally(captioner, jobs, RunSpec(timeout=60.0, batch=2)):
        found.append(one)
        if len(found) == 2:  # the neighbours
            later[0] = 61.0
    assert {one.path: one.caption.error and one.caption.error["kind"] for one in found} == {
        "a/good.mp4": None,
        "slow/good.mp4": "timeout",
        "b/good.mp4": None,
    }


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
    assert fixed_segments(length, start, end) == list(pairwise(cuts))


@pytest.mark.full
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

    from vidspec.runs.segments import cut_clip

    path = str(tmp_path / "cuts.mp4")
    with av.open(path, "w") as file:
        stream = file.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for shade in (0, 255, 90):
            for _ in range(30):
                picture = np.full((64, 64, 3), (shade, 255 - shade, shade), np.uint8)
                file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))
    assert cut_clip(path, "scenes", None, None) == [(0.0, 3.0), (3.0, 6.0), (6.0, 9.0)]
    assert cut_clip(path, "scenes", 4.0, 7.0) == [(4.0, 6.0), (6.0, 7.0)]
    assert cut_clip(CLIP, "scenes", None, None) == [
        (0.0, pytest.approx(read(CLIP, frames=1).facts.duration_s, abs=1e-3))
    ]
