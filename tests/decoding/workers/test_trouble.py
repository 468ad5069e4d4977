"""Real workers in trouble: a draft that dies, hangs, fails or cannot be loaded, and a main process that ends.

``VIDSPEC_KILLS=100`` kills the draft that often instead of a few times.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from research.training.architecture import build_tokenizer
from tests.checkpoints import checkpoint, copy_checkpoint
from tests.decoding.workers.pairs import CLIP, CLIPS, gone, named_requests
from tests.ready_clips import ReadyClips
from vidspec.cli import main as run
from vidspec.config import profiles
from vidspec.decoding.protocol import OpenClip, Propose
from vidspec.decoding.scheduler import WorkerLost
from vidspec.decoding.target import Target
from vidspec.decoding.workers import process as processes
from vidspec.decoding.workers.process import DraftProcessSlot, RemoteDraft
from vidspec.errors import GenerationError, ModelError
from vidspec.events.events import Finished, Prefilled, Restarted, Round
from vidspec.events.trace import Trace
from vidspec.models import loading
from vidspec.models.request import CaptionRequest
from vidspec.process import spawn

KILLS = int(os.environ.get("VIDSPEC_KILLS", "3"))
pytestmark = pytest.mark.usefixtures("forked_drafts")


def moved_to(kind, events):
    return [number for number, event in enumerate(events) if isinstance(event, kind)]


@pytest.fixture
def slow_target(pairs, monkeypatch):
    """The target does not write a whole text before the test has done what it does to the draft."""
    pairs.plain("one-object")  # at its usual speed
    rows = Target.rows
    monkeypatch.setattr(Target, "rows", lambda target, draft: (time.sleep(0.02), rows(target, draft))[1])


@pytest.mark.full
def test_a_draft_that_is_killed_is_started_again_and_the_clip_done_again(pairs):
    """At any event of any clip: the caption is exact, and there once."""
    rng = random.Random(7)
    tries = restarts = 0
    while tries < KILLS or not restarts:  # on a busy machine the target may write some texts alone
        assert tries < KILLS + 20
        tries += 1
        moment, delay = rng.randrange(-1, 12), rng.random() * 0.02
        pairs.slot.ready()
        events = []
        if moment < 0:
            threading.Timer(delay, os.kill, (pairs.pid, signal.SIGKILL)).start()
        for number, event in enumerate(pairs.first.stream(CLIP)):
            events.append(event)
            if number == moment:
                time.sleep(delay)
                os.kill(pairs.pid, signal.SIGKILL)
        assert moved_to(Finished, events) == [len(events) - 1]
        assert events[-1].caption.token_ids == pairs.plain("one-object")
        if again := moved_to(Restarted, events):
            restarts += 1
            assert "SIGKILL" in events[again[0]].why
            rest = [event for event in events[again[0] :] if isinstance(event, Round)]
            assert [token for event in rest for token in event.token_ids] == events[-1].caption.token_ids
            assert events[-1].caption.counters["emitted"] == len(events[-1].caption.token_ids)
    assert pairs.first.caption(CLIP).token_ids == pairs.plain("one-object")


@pytest.mark.full
def test_a_draft_that_dies_costs_none_of_its_clips(pairs):
    """They are begun again with one fresh process for all."""
    clips = list(CLIPS)[:4]
    for seed in range(KILLS):
        rng = random.Random(seed)
        pairs.slot.ready()
        pid, left = pairs.pid, rng.randrange(4, 40)
        again, captions = set(), {}
        for clip, event in pairs.first.client.serve(ReadyClips(named_requests(pairs.first, clips)), batch=4):
            left -= 1
            if not left:
                os.kill(pid, signal.SIGKILL)
            assert not isinstance(event, Exception), event
            if isinstance(event, Restarted):
                assert clip not in again and "SIGKILL" in event.why
                again.add(clip)
            if isinstance(event, Finished):
                captions[clip] = event.caption.token_ids
        assert captions == {clip: pairs.plain(clip) for clip in clips}
        assert again and pairs.slot.ready().process.pid != pid


def test_an_error_in_one_clip_leaves_the_others_alone(pairs):
    """Its draft is told to roll back before it has read anything."""
    process = pairs.slot.ready()
    stream = pairs.first.stream(CLIP)
    next(stream)
    request = pairs.first.client._with_defaults(CaptionRequest("", pairs.first.client.inputs.read(CLIP)))
    opening = OpenClip(pairs.first.client.profile, request, 10, False, frozenset())
    draft = RemoteDraft(process, opening, 60.0, Trace())
    draft.send(Propose(1, 0, 0, (3,)))
    *_, last = stream
    assert last.caption.token_ids == pairs.plain("one-object")
    (failed,) = draft.take()
    assert "roll back before its prompt was read" in failed.error and "in take" in failed.traceback and not failed.lost
    draft.close()
    assert pairs.slot.ready() is process


@pytest.mark.full
def test_a_clip_that_kills_its_draft_each_time_has_failed(pairs, slow_target):
    with pytest.raises(GenerationError, match="SIGKILL") as caught:
        for event in pairs.first.stream(CLIP):
            if isinstance(event, Prefilled):
                os.kill(pairs.pid, signal.SIGKILL)
                pairs.slot.process._reader.join()
    assert caught.value.kind == "worker"
    assert pairs.first.caption(CLIP).token_ids == pairs.plain("one-object")


@pytest.mark.full
def test_a_process_that_died_before_the_clip_began_is_told_of(pairs):
    """It dies between the look at it and its first message; nobody waits for its answer."""
    process = pairs.slot.ready()
    os.kill(pairs.pid, signal.SIGKILL)
    process._reader.join()
    clip = next(pairs.first.stream(CLIP))  # Opened: nothing of it has reached the draft
    assert clip.frames
    request = pairs.first.client._with_defaults(CaptionRequest("", pairs.first.client.inputs.read(CLIP)))
    opening = OpenClip(pairs.first.client.profile, request, 10, True, frozenset())
    draft = RemoteDraft(process, opening, 60.0, Trace())
    draft.begin()
    assert "SIGKILL" in draft.take()[0].error
    process.stop()


@pytest.mark.full
def test_a_draft_that_is_stopped_is_replaced_and_the_clip_done_again(pairs):
    captioner = pairs.sharing(**{"workers.timeout": 2.0})
    for _ in range(20):  # on a busy machine the target may write a text alone before the draft has read its prompt
        pid = pairs.slot.ready().process.pid  # a clip that ended in time may have left a stopped draft, now replaced
        events = []
        for event in captioner.stream(CLIP):
            events.append(event)
            if getattr(event, "mode", "") in ("pre", "post") and pairs.pid == pid:
                os.kill(pid, signal.SIGSTOP)
        assert events[-1].caption.token_ids == pairs.plain("one-object")
        if again := moved_to(Restarted, events):
            assert "draft worker failed: no answer for 2 s" in events[again[0]].why
            break
    assert again and gone(pid) and pairs.pid != pid


@pytest.fixture
def spawned(monkeypatch):
    """Draft processes start as they do outside of tests."""
    monkeypatch.setattr(processes, "spawn", spawn)


@pytest.mark.full
def test_a_draft_that_is_stopped_while_it_loads_is_replaced(pairs, spawned):
    slot = DraftProcessSlot(pairs.slot.model, pairs.slot._where, pairs.first.client.profile)
    slot.target, slot._timeout = pairs.model, 1.0
    pid = slot.process.process.pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(WorkerLost, match="has not loaded its model and does nothing for 1 s"):
        slot.ready()
    slot._timeout = 60.0
    assert gone(pid) and slot.ready().process.pid != pid
    slot.drop()


def test_by_default_a_worker_that_hangs_is_noticed_within_30_seconds():
    assert profiles.load("parallelvlm", env={}).workers.timeout <= 30


def test_closing_ends_a_clip_that_is_under_way(pairs, slow_target):
    stream = pairs.first.stream(CLIP)
    for _ in range(3):
        next(stream)
    pairs.slot.drop()
    with pytest.raises(GenerationError, match="draft worker failed: it was stopped"):
        list(stream)


@pytest.mark.full
@pytest.mark.parametrize("name", ["parallelvlm", "hippo"])
def test_an_error_in_the_draft_carries_its_traceback(pairs, name, monkeypatch):
    """Eight patches per side for the target, four for the draft: they see a frame differently."""
    rows = Target.rows  # so slow that the target does not write the whole text before the draft fails
    monkeypatch.setattr(Target, "rows", lambda target, draft: (time.sleep(0.2), rows(target, draft))[1])
    other = loading.load_model(str(checkpoint("readable", image_size=64)), pairs.slot._where)
    with pytest.raises(GenerationError, match=r"draft worker failed: ModelError.*see a frame differently") as caught:
        pairs.sharing(name, target=other).caption(CLIP)
    assert "Traceback" in str(caught.value.__cause__) and "in rows" in str(caught.value.__cause__)
    pairs.slot.target = pairs.model


@pytest.mark.full
def test_a_draft_of_another_tokenizer_is_refused(pairs, tmp_path):
    folder = copy_checkpoint(tmp_path, "readable")
    build_tokenizer(samples=300, seed=8).save_pretrained(folder)
    other = loading.load_model(str(folder), pairs.slot._where)
    with pytest.raises(ModelError, match="different tokenizers"):
        pairs.sharing(target=other).caption(CLIP)
    pairs.slot.target = pairs.model


def test_a_draft_that_cannot_be_loaded_is_one_line(pairs, tmp_path, capfd):
    settings = {"--target": str(pairs.folders[0]), "--draft": str(tmp_path), "--profile": "parallelvlm"}
    options = [part for option in settings.items() for part in option]
    assert run(["caption", str(CLIP), *options, "--no-live", "--debug"]) == 3
    *shown, last = capfd.readouterr().err.splitlines()
    assert "the draft worker: " in last and "no config.json" in last and last.endswith(")"), "a hint in brackets"
    assert [line for line in shown if "in serve" in line], "the traceback of the other process"


BEGIN = """
import sys
import time
from vidspec.config import profiles
from vidspec.captioner import Captioner
from vidspec.decoding.workers.process import DraftProcessSlot
from vidspec.models.placement import resolve_placement

target, draft, clip = sys.argv[1:]  # not behind a guard: the draft's process must not run this again
settings = {"models.pair": None, "models.target": target, "models.draft": draft, "models.threads": 1}
profile = profiles.load("parallelvlm", settings, env={})
"""
DECODING = """
captioner = Captioner.from_profile(profile)
for _ in range(10_000):
    for number, event in enumerate(captioner.stream(clip)):
        if number == 3:
            print(captioner.client.setup.slot.process.process.pid, flush=True)
"""
LOADING = """
slot = DraftProcessSlot(draft, resolve_placement("cpu", "float32"), profile)
print(slot.process.process.pid, flush=True)
try:
    slot.ready()
except AttributeError:  # loaded before the signal came, and there is no target to compare it with
    time.sleep(600)
"""


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "how"), [(DECODING, signal.SIGINT), (DECODING, signal.SIGKILL), (LOADING, signal.SIGINT)]
)
def test_ctrl_c_and_sudden_death_leave_nothing(pairs, tmp_path, script, how):
    """No process, no shared memory, and of Ctrl-C no word but the main process's own traceback."""
    file = tmp_path / "caption.py"
    file.write_text(BEGIN + script)
    command = [sys.executable, str(file), *map(str, pairs.folders), str(CLIP)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as one:
        pid = int(one.stdout.readline())
        if how == signal.SIGINT:
            os.killpg(one.pid, signal.SIGINT)  # as a terminal does: to both
        else:
            os.kill(one.pid, signal.SIGKILL)
        one.stdout.close()
        said = one.stderr.read()
        assert one.wait(60) != 0
    assert gone(pid)
    if how == signal.SIGINT:  # after a kill it is the resource tracker that gives shared memory back, and says so
        assert said.count("Traceback") == 1 and "leaked s" not in said, said
    else:
        assert "Traceback" not in said
