"""Captioners in other processes: replicas on this machine and Ray actors give what one process gives."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fake_captioner import FakeCaptioner, FakeVision
from tests.fake_captioner import record as captioned
from tests.runs.test_reading import alive
from vidspec.config import profiles
from vidspec.config.run_spec import RunSpec
from vidspec.embedded.samples import shipped
from vidspec.errors import DeviceError, ModelError, UsageError
from vidspec.runs.executors.base import (
    CaptionerFactory,
    DeviceGroup,
    JobBegun,
    TaskQueue,
    WorkerExecutor,
    WorkerExit,
    serve_jobs,
)
from vidspec.runs.executors.devices import device_groups
from vidspec.runs.executors.local import caption_locally
from vidspec.runs.executors.ray import connect_ray
from vidspec.runs.executors.replicas import ReplicaExecutor
from vidspec.runs.job import Job
from vidspec.runs.store.records import content_of, record_of

ROOT = Path(__file__).resolve().parents[2]
PROFILE = profiles.load("vanilla-sd", {"video.frames": 2, "video.max_pixels": 64, "generate.prompt": "Describe."}, {})
CONFIG = RunSpec()
FACTORY = CaptionerFactory(PROFILE.model_dump(), "tests.fake_captioner:FakeCaptioner")
GROUPS = [DeviceGroup(), DeviceGroup()]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Other processes find the fake captioner too."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def tasks(tmp_path):
    names = ["a/good", "b/good", "bug", "missing", "dies-once", "dies", "c/good", "d/good", "e/good"]
    for name in names:
        path = tmp_path / f"{name}.mp4"
        path.parent.mkdir(exist_ok=True)
        if name != "missing":
            shutil.copy(shipped()[0], path)
    return [Job(str(tmp_path / f"{name}.mp4"), number=number) for number, name in enumerate(names, start=1)]


def records(found):
    made = [record_of(outcome, CONFIG, PROFILE, content_of(outcome.path)) for outcome in found]
    for record in made:
        record["timings"].pop("decode_video", None)
    return sorted(json.dumps(record, sort_keys=True) for record in made)


def alone(tasks):
    """Return one process's outcomes; it cannot survive a clip that ends it."""
    captioner = FakeCaptioner(PROFILE)
    return caption_locally(captioner, [task for task in tasks if Path(task.path).stem != "dies"], CONFIG)


def check(found, tasks):
    dead = [outcome for outcome in found if outcome.caption.error and outcome.caption.error["kind"] == "crashed"]
    assert [Path(outcome.path).stem for outcome in dead] == ["dies"]
    assert records(one for one in found if one not in dead) == records(alone(tasks))


@pytest.mark.full
def test_replicas_give_what_one_process_gives_and_survive_deaths(tasks):
    check(list(ReplicaExecutor(FACTORY, CONFIG, GROUPS)(tasks)), tasks)


@pytest.mark.full
def test_replicas_end_with_a_run_that_is_killed(tasks):
    paths = [task.path for task in tasks[:2]]
    code = (
        "import os; from pathlib import Path; from tests.runs.test_pool import *\n"
        f"todo = [Job(path, number=number) for number, path in enumerate({paths!r})]\n"
        "found = ReplicaExecutor(FACTORY, CONFIG, GROUPS)(todo); next(found)\n"
        "print(Path(f'/proc/self/task/{os.getpid()}/children').read_text(), flush=True); os.kill(os.getpid(), 9)"
    )
    script = Path(tasks[0].path).parent / "killed.py"
    script.write_text(code)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    left = [int(pid) for pid in ran.stdout.split() if pid.isdigit()]
    assert len(left) == 2, ran.stderr
    for _ in range(1200):
        left = [pid for pid in left if alive(pid)]
        if not left:
            return
        time.sleep(0.05)
    pytest.fail("captioners outlived their run")


@pytest.mark.full
def test_ray_actors_give_what_one_process_gives_and_survive_deaths(tasks):
    ray = pytest.importorskip("ray")
    from vidspec.runs.executors.ray import RayExecutor

    try:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        check(list(RayExecutor(FACTORY, CONFIG, [DeviceGroup(threads=1)] * 2)(tasks)), tasks)
        refusing = CaptionerFactory(PROFILE.model_dump(), "tests.fake_captioner:Refusing")
        with pytest.raises(ModelError, match="no such model"):
            list(RayExecutor(refusing, CONFIG, [DeviceGroup(threads=1)])(tasks))
    finally:
        ray.shutdown()


class FakeWorkers(WorkerExecutor):
    """Workers of one job at a time in this process; they die of those that are ``deadly``, or while they load."""

    def __init__(self, groups=GROUPS, deadly=(), loads=True):
        super().__init__(FACTORY, CONFIG, groups)
        self.deadly, self.loads, self.started, self.messages = deadly, loads, [], []

    def start(self, group):
        self.started.append(group)
        number = len(self.started)
        self.messages.append((number, "more" if self.loads else WorkerExit("exit code 9")))
        return number

    def send(self, worker, job):
        end = WorkerExit("SIGKILL") if job.path in self.deadly else replace(job, result=captioned(job.path))
        self.messages += [(worker, JobBegun(job)), (worker, end)] + [(worker, "more")] * (
            not isinstance(end, WorkerExit)
        )

    def receive(self):
        found, self.messages = self.messages, []
        return found

    def close(self, idle):
        self.idle = set(idle)


def test_a_worker_that_dies_is_replaced_on_its_devices():
    workers = FakeWorkers([DeviceGroup("0"), DeviceGroup("1")], deadly={"1.mp4"})
    jobs = [Job(f"{number}.mp4", number=number) for number in range(4)]
    found = {one.path: one for one in workers(jobs)}
    assert {path: one.caption.error and one.caption.error["kind"] for path, one in found.items()} == {
        "0.mp4": None,
        "1.mp4": "crashed",
        "2.mp4": None,
        "3.mp4": None,
    }
    assert found["1.mp4"].caption.profile == PROFILE.name and "each time: SIGKILL" in str(found["1.mp4"].error)
    assert len(workers.started) == 4 and sorted(one.visible for one in workers.started) in (
        ["0", "0", "1", "1"],
        ["0", "0", "0", "1"],
        ["0", "1", "1", "1"],
    )


def test_workers_are_no_more_than_jobs_and_idle_ones_end_by_themselves():
    workers = FakeWorkers()
    assert len(list(workers([Job("a.mp4")]))) == 1
    assert len(workers.started) == 1 and workers.idle == {1}


def test_a_worker_that_dies_of_the_last_clip_is_not_replaced():
    workers = FakeWorkers(deadly={"a.mp4"})
    assert [one.error.kind for one in workers([Job("a.mp4")])] == ["crashed"]
    assert len(workers.started) == 2, "the first, and the one that tried again"


def test_a_worker_that_ends_while_it_loads_ends_the_run():
    workers = FakeWorkers(loads=False)
    with pytest.raises(ModelError, match=r"ended while it loaded its models \(exit code 9\)"):
        list(workers([Job("a.mp4")]))
    assert workers.idle == set()


@pytest.mark.full
def test_a_replica_without_models_ends_the_run(tasks):
    refusing = CaptionerFactory(PROFILE.model_dump(), "tests.fake_captioner:Refusing")
    with pytest.raises(ModelError, match="no such model"):
        list(ReplicaExecutor(refusing, CONFIG, GROUPS)(tasks))


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("baseline", [False, True])
def test_nothing_is_prepared_ahead_where_times_are_compared(monkeypatch, baseline):
    """As in this process."""
    prepared, messages = [], []
    monkeypatch.setattr(FakeVision, "prepare", lambda self, clip: prepared.append(clip) or 0)
    config = CONFIG.model_copy(update={"baseline": baseline})
    jobs = iter([Job(str(shipped()[0])), None])
    channel = SimpleNamespace(receive=lambda: next(jobs), send=messages.append)
    serve_jobs(channel, FACTORY, config, DeviceGroup())
    assert [one.error for one in messages if isinstance(one, Job)] == [None] and len(prepared) == (not baseline)


class Players:
    """Captioners that take what a queue gives, caption four pieces at once, and die of those that are ``deadly``."""

    def __init__(self, seed, count, tasks, deadly, segments=1):
        self.rng, self.deadly, self.segments = random.Random(seed), deadly, segments
        self.queue, self.outcomes, self.deaths = TaskQueue(tasks, "x"), [], 0
        self.hands = {number: [] for number in range(count)}
        while not self.queue.over:
            self.turn(self.rng.choice(list(self.hands)))

    def turn(self, who):
        hand = self.hands[who]  # pieces, and which of them are begun
        task = self.queue.take(who) if len(hand) < 6 else None
        if task is not None:
            hand += [[piece, False] for piece in self.pieces(task)]
        idle = [one for one in hand if not one[1] and not (one[0].run_alone and any(begun for _, begun in hand))]
        busy = [one for one in hand if one[1]]
        if idle and len(busy) < 4 and self.rng.random() < 0.6:
            idle[0][1] = True
            piece = idle[0][0]
            self.queue.mark_begun(who, piece)
            if (piece.number, piece.segment) in self.deadly:
                self.outcomes += self.queue.fail_worker(who, "SIGKILL")
                self.deaths += 1
                del self.hands[who]
                self.hands[max(self.hands, default=0) + self.deaths + 10] = []
        elif busy:
            piece = busy[0][0]
            hand.remove(busy[0])
            piece.result = captioned(piece.path)
            self.outcomes.append(piece)
            self.queue.mark_done(who, self.outcomes[-1])

    def pieces(self, task):
        if self.segments == 1:
            return [task]
        left = [number for number in range(self.segments) if number not in task.done]
        parts = [task.part(one, self.segments) for one in left]
        assert parts, "a task with nothing left to do was dealt"
        return parts


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("segments", [1, 5])
def test_only_what_a_captioner_dies_of_fails(count, segments):
    """Whatever is captioned beside it, and in whatever order things happen."""
    parts = [None] if segments == 1 else range(segments)
    everything = {(number, part) for number in range(20) for part in parts}
    for seed in range(50):
        deadly = set(random.Random(seed).sample(sorted(everything, key=str), 4))
        played = Players(seed, count, [Job(f"{n}.mp4", number=n) for n in range(20)], deadly, segments)
        ended = [(one.number, one.segment) for one in played.outcomes]
        assert sorted(ended, key=str) == sorted(everything, key=str), "each once"
        failed = {key for key, one in zip(ended, played.outcomes, strict=True) if one.error}
        assert failed == deadly and played.deaths <= 3 * len(deadly)
        assert all(one.caption.error["kind"] == "crashed" for one in played.outcomes if one.error)
        lasts = [one.number for one in played.outcomes if one.is_last]
        assert sorted(lasts) == list(range(20)), "every clip ends once"


def test_a_death_before_anything_is_captioned_blames_what_was_there():
    queue = TaskQueue([Job("a", number=1)], "x")
    for who, fails in ((1, 0), (2, 1)):
        assert queue.take(who).number == 1 and queue.take(who) is None
        assert len(queue.fail_worker(who, "exit code 9")) == fails
    assert queue.over


@pytest.mark.parametrize(
    ("address", "error", "hint"),
    [
        (None, Exception("The current node timed out.\nMore."), "replicas alone uses this machine without Ray"),
        ("ray://there:1", ConnectionError("The current node timed out."), "set RAY_AUTH_MODE=token"),
    ],
)
def test_ray_that_does_not_start_is_one_line(monkeypatch, address, error, hint):
    def init(**_options):
        raise error

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    with pytest.raises(DeviceError) as caught:
        connect_ray(address)
    assert caught.value.message == f"no Ray cluster at {address or 'this machine'}: The current node timed out."
    assert hint in caught.value.hint


def groups(monkeypatch, gpus, replicas, changes=None, **more):
    cluster = SimpleNamespace(cluster_resources=lambda: {"GPU": gpus})
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("vidspec.runs.executors.devices.connect_ray", lambda address: cluster)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return device_groups(replicas, profiles.override(PROFILE, changes or {}), **more)


def test_one_captioner_for_each_group_of_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    two = {"models.draft_device": "cuda:1"}
    assert [one.visible for one in groups(monkeypatch, 3, "auto")] == ["0", "1", "2"]
    assert [one.visible for one in groups(monkeypatch, 3, 2)] == ["0", "1"]
    assert [one.visible for one in groups(monkeypatch, 5, "auto", two)] == ["0,1", "2,3"]
    assert [one.visible for one in groups(monkeypatch, 4, 2, {"models.device_map": "auto"})] == ["0,1", "2,3"]
    assert groups(monkeypatch, 4, "auto", {"models.device_map": "auto"}) == [DeviceGroup()]
    assert groups(monkeypatch, 5, "auto", two, ray=True) == [DeviceGroup(gpus=2)] * 2
    beside = {"schedule.kind": "parallel"}
    assert [one.visible for one in groups(monkeypatch, 4, "auto", beside)] == ["0,1", "2,3"]
    assert [one.visible for one in groups(monkeypatch, 2, 2, beside)] == ["0", "1"]
    assert [one.visible for one in groups(monkeypatch, 2, "auto", {**beside, "models.device": "cuda"})] == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b,GPU-a")
    assert [one.visible for one in groups(monkeypatch, 2, "auto")] == ["GPU-b", "GPU-a"]


def test_captioners_share_the_cores_where_there_is_no_gpu(monkeypatch):
    assert groups(monkeypatch, 0, "auto") == [DeviceGroup(threads=8)]
    assert groups(monkeypatch, 0, 4) == [DeviceGroup(threads=2)] * 4
    assert groups(monkeypatch, 2, 2, {"models.device": "cpu"}) == [DeviceGroup(threads=4)] * 2
    assert groups(monkeypatch, 0, 2, ray=True) == [DeviceGroup(threads=1)] * 2


@pytest.mark.parametrize(
    ("gpus", "replicas", "changes", "error", "message"),
    [
        (2, 3, {}, DeviceError, "this machine has 2 GPUs"),
        (3, 2, {"models.draft_device": "cuda:1"}, DeviceError, "2 of 2 each: this machine has 3 GPUs"),
        (4, 2, {"models.device": "cuda:1"}, UsageError, "names one device"),
    ],
)
def test_groups_that_cannot_be(monkeypatch, gpus, replicas, changes, error, message):
    with pytest.raises(error, match=message):
        groups(monkeypatch, gpus, replicas, changes)


def test_a_captioner_sees_its_group_alone(monkeypatch):
    begun = []
    monkeypatch.setattr("vidspec.runs.executors.replicas.spawn", lambda *args, **more: begun.append((args, more)))
    ReplicaExecutor(FACTORY, CONFIG, GROUPS).start(DeviceGroup(visible="2,3", threads=5))
    ((_, factory, _, group), more) = begun[0]
    assert more["env"] == {"CUDA_VISIBLE_DEVICES": "2,3"} and factory.make(group).client.profile.models.threads == 5


def test_the_clips_of_a_shard_go_to_one_worker_and_are_drawn_when_it_is_its_turn():
    drawn = []

    def jobs():
        for number in range(12):
            drawn.append(number)
            yield Job(f"{number // 4}.tar/{number}", number=number, shard=f"{number // 4}.tar")

    queue = TaskQueue(jobs(), "x")
    taken = {"a": [queue.take("a").number], "b": [queue.take("b").number]}
    assert drawn == list(range(9)), "the first clip of the next shard tells that one is over"
    while (job := queue.take("a")) is not None and job.number < 4:
        taken["a"].append(job.number)
    assert taken == {"a": [0, 1, 2, 3], "b": [4]} and job.number == 8
    assert [queue.take("a").number for _ in range(3)] == [9, 10, 11]
    assert queue.take("a").number == 5, "no shard is left: it helps with that of the other"
    assert queue.take("b").number == 6 and queue.take("a").number == 7 and queue.take("a") is None
    assert not queue.over
    queue.fail_worker("b", "exit code 9")
    assert sorted(queue.take("a").number for _ in range(2)) == [4, 6], "what a dead worker had is done again"
