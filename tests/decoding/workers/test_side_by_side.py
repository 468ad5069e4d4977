"""Real workers: the target's thread and the draft's process, on small random models, in health and in trouble.

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
from decoding import checkpoints

from vidspec import profiles
from vidspec.captioner import Captioner
from vidspec.decoding.events import Finished, Prefilled, Round
from vidspec.embedded.architecture import build_tokenizer
from vidspec.embedded.samples import shipped
from vidspec.errors import GenerationError, ModelError

KILLS = int(os.environ.get("VIDSPEC_KILLS", "4"))
CLIPS = {path.stem: path for path in shipped()}
CLIP = CLIPS["one-object"]
TOKENS = 150


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return checkpoints.save(folder / "target"), checkpoints.save(folder / "draft", noise=0.05)


def settings(folders, **more):
    target, draft = folders
    return {
        "models.pair": None,
        "models.target": str(target),
        "models.draft": str(draft),
        "models.threads": 2,
        "generate.max_new_tokens": TOKENS,
        "workers.timeout": 60.0,
        **more,
    }


def loaded(folders, name="parallelvlm", **more):
    return Captioner.from_profile(profiles.load(name, settings(folders, **more), env={}))


@pytest.fixture(scope="module")
def plain(folders):
    with loaded(folders, "ar") as captioner:
        return {clip: captioner.caption(path).token_ids for clip, path in CLIPS.items()}


@pytest.fixture(scope="module")
def pair(folders):
    with loaded(folders) as captioner:
        yield captioner


def pids(captioner):
    return captioner.slot._process.process.pid


def test_one_process_captions_many_clips(pair, plain):
    first = pids(pair) if pair.slot._process else None
    accepted = 0
    for clip, path in CLIPS.items():
        record = pair.caption(path)
        assert record.token_ids == plain[clip]
        accepted += record.counters["accepted"]
        assert record.counters["visual_tokens_kept"] == round(0.1 * record.counters["visual_tokens"])
    # The target goes on alone until the draft has read its prompt, which on a busy machine may be late.
    assert accepted > 0
    assert first in (None, pids(pair))


def test_both_lanes_are_traced(pair):
    trace = pair.caption(CLIP).trace
    kinds = {worker: {span.kind for span in trace.spans if span.worker == worker} for worker in ("target", "draft")}
    assert kinds["target"] >= {"preprocess", "vision", "target_prefill", "verify", "accept", "wait"}
    assert kinds["draft"] >= {"preprocess", "vision", "draft_prefill", "draft", "rollback", "prune"}
    by_kind = {kind: [span for span in trace.spans if span.kind == kind] for kind in ("draft", "verify")}
    overlap = sum(
        max(0.0, min(a.end, b.end) - max(a.start, b.start)) for a in by_kind["draft"] for b in by_kind["verify"]
    )
    assert overlap > 0  # they did work at the same time
    assert all(0 <= span.start <= span.end for span in trace.spans)


def test_rounds_tell_what_they_were(pair):
    events = list(pair.stream(CLIP))
    rounds = [event for event in events if isinstance(event, Round)]
    assert [type(event) for event in events[1:2]] == [Prefilled] and isinstance(events[-1], Finished)
    assert rounds[0].mode == "prefill" and {step.mode for step in rounds[1:]} <= {"alone", "pre", "post"}
    counters = events[-1].caption.counters
    assert counters["drafted"] == counters["accepted"] + sum(step.wasted for step in rounds)
    assert counters["emitted"] == len(events[-1].caption.token_ids)
    assert counters["bonus"] == 0


VARIANTS = {
    "PEARL": {"prune.method": "none", "schedule.prefill": "sequential", "draft.gamma": 4},
    "parallel prefill": {"prune.method": "none"},
    "attention": {"prune.method": "attention"},
    "as many start-up tokens as fit": {"schedule.startup": "fit", "prune.method": "uniform"},
    "text only": {"draft.kind": "text_only", "prune.method": "none"},
    "self": {"draft.kind": "self", "models.draft": None},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_give_the_same_text(folders, plain, name):
    with loaded(folders, **VARIANTS[name]) as captioner:
        for clip in ("one-object", "three-objects"):
            assert captioner.caption(CLIPS[clip]).token_ids == plain[clip]


def test_killing_the_draft_ends_in_a_caption_or_a_named_error(folders, plain):
    """At any event of any clip; the next clip gets a fresh process."""
    rng = random.Random(7)
    ends = set()
    with loaded(folders) as captioner:
        for _ in range(KILLS):
            moment, delay = rng.randrange(-1, 12), rng.random() * 0.02
            if moment < 0:
                captioner.slot.ready()
                threading.Timer(delay, os.kill, (pids(captioner), signal.SIGKILL)).start()
            try:
                for number, event in enumerate(captioner.stream(CLIP)):
                    if number == moment:
                        time.sleep(delay)
                        os.kill(pids(captioner), signal.SIGKILL)
                    if isinstance(event, Finished):
                        assert event.caption.token_ids == plain["one-object"]
                        ends.add("caption")
            except GenerationError as error:
                assert error.kind == "worker" and "exit code -9" in str(error)
                ends.add("error")
            assert captioner.caption(CLIP).token_ids == plain["one-object"]
    assert "error" in ends


def test_a_draft_that_hangs_is_given_up(folders):
    with loaded(folders, **{"workers.timeout": 3.0}) as captioner:
        captioner.caption(CLIP)
        with pytest.raises(GenerationError, match=r"draft worker failed: no answer for 3 s"):
            for number, _ in enumerate(captioner.stream(CLIP)):
                if number == 2:
                    os.kill(pids(captioner), signal.SIGSTOP)
        assert captioner.slot._process is None


def test_an_error_in_the_draft_carries_its_traceback(folders, tmp_path):
    """Eight patches per side for the draft, four for the target: they see a frame differently."""
    other = checkpoints.save(tmp_path / "draft", image_size=64)
    with loaded(folders, **{"models.draft": str(other)}) as captioner:
        with pytest.raises(GenerationError, match="draft worker failed: ModelError.*see a frame differently") as caught:
            captioner.caption(CLIP)
        assert "Traceback" in str(caught.value.__cause__) and "in own" in str(caught.value.__cause__)


def test_a_draft_of_another_tokenizer_is_refused(folders, tmp_path):
    other = checkpoints.save(tmp_path / "draft")
    build_tokenizer(samples=300, seed=8).save_pretrained(other)
    with loaded(folders, **{"models.draft": str(other)}) as captioner:
        with pytest.raises(ModelError, match="different tokenizers"):
            captioner.caption(CLIP)


def test_a_draft_that_cannot_be_loaded(folders, tmp_path):
    with loaded(folders, **{"models.draft": str(tmp_path)}) as captioner:
        with pytest.raises(GenerationError, match=r"draft worker failed: ModelError: .*no config.json"):
            captioner.caption(CLIP)


def test_nothing_is_left_behind(folders):
    captioner = loaded(folders)
    captioner.caption(CLIP)
    pid = pids(captioner)
    captioner.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not [thread for thread in threading.enumerate() if thread.name == "vidspec-target"]


SCRIPT = """
import sys
from vidspec import profiles
from vidspec.captioner import Captioner

target, draft, clip = sys.argv[1:]  # not behind a guard: the draft's process must not run this again
settings = {"models.pair": None, "models.target": target, "models.draft": draft, "models.threads": 2}
captioner = Captioner.from_profile(profiles.load("parallelvlm", settings, env={}))
for _ in range(10_000):
    for number, event in enumerate(captioner.stream(clip)):
        if number == 3:
            print(captioner.slot._process.process.pid, flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_and_sudden_death_leave_no_process(folders, tmp_path, how):
    script = tmp_path / "caption.py"
    script.write_text(SCRIPT)
    target, draft = map(str, folders)
    command = [sys.executable, str(script), target, draft, str(CLIP)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as one:
        pid = int(one.stdout.readline())
        if how == signal.SIGINT:
            os.killpg(one.pid, signal.SIGINT)  # as a terminal does: to both
        else:
            os.kill(one.pid, signal.SIGKILL)
        one.stdout.close()
        assert one.wait(60) != 0
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the draft's process is still there")
