"""Real workers, spawned as they are outside of tests: the target here and the draft in its process, in health.

On small random models.
"""

import gc
import itertools
import os
import threading
import time

import pytest
import torch

from tests.decoding.workers.pairs import CLIP, CLIPS, gone, named_requests
from tests.ready_clips import ReadyClips
from tests.tiers import full_but
from vidspec.decoding import prefill as prefills
from vidspec.decoding.protocol import Propose, Proposed
from vidspec.decoding.workers import process as processes
from vidspec.decoding.workers.process import DraftProcessSlot
from vidspec.engine.requests import Encode
from vidspec.events.events import Finished, Prefilled, Round
from vidspec.events.trace import to_chrome


@pytest.fixture
def same_process(pairs):
    """The test leaves the process alive and its clips closed; the frames are given back."""
    pairs.slot.target = pairs.model
    before = pairs.slot.ready().process.pid
    yield
    assert pairs.slot.ready().process.pid == before
    assert pairs.first.caption(CLIP).token_ids == pairs.plain("one-object")
    assert not pairs.slot.process._clips


@pytest.mark.full
def test_one_process_captions_many_clips(pairs, same_process):
    accepted = 0
    for clip, path in list(CLIPS.items())[:5]:
        record = pairs.first.caption(path)
        assert record.token_ids == pairs.plain(clip)
        accepted += record.counters["accepted"]
        assert record.counters["visual_tokens_kept"] == round(0.1 * record.counters["visual_tokens"])
    # The target goes on alone until the draft has read its prompt, which on a busy machine may be late.
    for _ in range(20):
        accepted = accepted or pairs.first.caption(CLIP).counters["accepted"]
    assert accepted > 0


@pytest.mark.full
def test_both_lanes_are_traced(pairs):
    def overlap(trace):
        by_kind = [[span for span in trace.spans if span.kind == kind] for kind in ("draft", "verify")]
        return sum(max(0.0, min(a.end, b.end) - max(a.start, b.start)) for a, b in itertools.product(*by_kind))

    # On a busy machine a draft may be so late that the target has gone on alone to the end, or do nothing meanwhile.
    records = (pairs.first.caption(CLIP) for _ in range(20))
    record = next(one for one in records if one.counters["accepted"] and overlap(one.trace) > 0)
    trace = record.trace
    kinds = {worker: {span.kind for span in trace.spans if span.worker == worker} for worker in ("target", "draft")}
    # "wait" too, unless the draft's answers always come before the target's pass ends.
    assert kinds["target"] >= {"preprocess", "vision", "target_prefill", "prune", "verify", "accept"}
    assert kinds["draft"] >= {"preprocess", "vision", "draft_prefill", "draft", "rollback"}
    assert all(0 <= span.start <= span.end for span in trace.spans)
    emitted = [dict(span.about)["emitted"] for span in trace.spans if span.kind == "draft"]
    assert sum(emitted) == record.counters["accepted"]
    slices = [event for event in to_chrome(trace)["traceEvents"] if event["ph"] == "X"]
    assert sum(event["name"] == "draft (wasted)" for event in slices) == len(emitted) - sum(emitted)
    for worker, seconds in trace.by_worker().items():
        spans = [span for span in trace.spans if span.worker == worker]
        assert sum(seconds.values()) <= max(span.end for span in spans) - min(span.start for span in spans) + 1e-6


@pytest.mark.full
def test_spans_of_a_lane_do_not_cross(pairs):
    spans = sorted(pairs.first.caption(CLIP).trace.spans, key=lambda span: (span.start, -span.end))
    for worker in ("target", "draft"):
        around = []
        for span in (span for span in spans if span.worker == worker):
            while around and around[-1].end <= span.start:
                around.pop()
            assert not around or span.end <= around[-1].end, (span, around[-1])
            around.append(span)


@pytest.mark.full
def test_rounds_tell_what_they_were(pairs):
    events = list(pairs.first.stream(CLIP))
    rounds = [event for event in events if isinstance(event, Round)]
    read = events[1]
    assert isinstance(read, Prefilled) and read.schedule == "parallel"
    assert isinstance(events[-1], Finished)
    assert rounds[0].mode == "prefill" and {step.mode for step in rounds[1:]} <= {"alone", "pre", "post"}
    counters = events[-1].caption.counters
    assert counters["drafted"] == counters["accepted"] + sum(step.wasted for step in rounds)
    assert all(0 <= step.aborted <= step.wasted for step in rounds)
    assert counters["emitted"] == len(events[-1].caption.token_ids)
    assert counters["bonus"] == 0


@pytest.mark.sample(quick=1, full=2)
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", full_but(["hippo"], ["hippo", "hippo-random"]))
def test_hippo_drafts_before_the_targets_prefill_ends(pairs, same_process, monkeypatch, name, batch):
    """A target whose prefill takes as long as the drafts of all clips take to say three tokens."""
    captioner, clips = pairs.sharing(name), list(CLIPS)[:batch]
    said, prefill, heard = {}, prefills._run_passes, processes.DraftProcess.dispatch

    def counted(process, clip, message):
        if isinstance(message, Proposed):
            said[clip] = said.get(clip, 0) + 1
        heard(process, clip, message)

    def late(setup, *rest):
        read = yield from prefill(setup, *rest)
        until = time.monotonic() + 60
        while sum(count >= 3 for count in said.values()) < batch and time.monotonic() < until:
            yield Encode(lambda: time.sleep(0.01))
        return read

    monkeypatch.setattr(processes.DraftProcess, "dispatch", counted)
    monkeypatch.setattr(prefills, "_run_passes", late)
    records = {
        clip: event.caption
        for clip, event in captioner.client.serve(ReadyClips(named_requests(captioner, clips)), batch=batch)
        if isinstance(event, Finished)
    }
    monkeypatch.undo()
    assert {clip: record.token_ids for clip, record in records.items()} == {clip: pairs.plain(clip) for clip in clips}
    for record in records.values():
        spans = record.trace.spans
        (read,) = (span for span in spans if span.kind == "target_prefill")
        early = [dict(span.about)["position"] for span in spans if span.kind == "draft" and span.end < read.end]
        assert early[:3] == [0, 1, 2]
        (pruned,) = (span for span in spans if (span.kind, span.worker) == ("prune", "draft"))
        assert pruned.start > read.end
        assert record.counters["visual_tokens_kept"] == round(0.1 * record.counters["visual_tokens"])


WHEN = [
    ("hippo-random", {}, True),
    ("pearl-specvlm", {}, False),
    ("parallelvlm", {}, False),
    ("parallelvlm", {"prune.method": "attention"}, True),
    ("parallelvlm", {"prune.method": "hippo", "prune.attention_term": False}, False),
    ("parallelvlm", {"prune.method": "attention", "prune.positions": "compact"}, False),
    ("hippo", {"schedule.prefill": "sequential"}, False),
]


@pytest.mark.parametrize(("name", "overrides", "late"), WHEN)
def test_which_drafts_read_everything_at_first(pairs, name, overrides, late):
    assert pairs.sharing(name, **overrides).client.setup.late == late


@pytest.mark.full
def test_hippo_that_waits_drafts_behind_the_targets_prefill(pairs, same_process):
    record = pairs.sharing("hippo", **{"prune.when": "wait"}).caption(CLIP)
    assert record.token_ids == pairs.plain("one-object")
    spans = record.trace.spans
    (read,) = (span for span in spans if span.kind == "target_prefill")
    assert all(span.start > read.end - 0.1 for span in spans if span.kind in ("draft", "draft_prefill"))
    assert not [span for span in spans if (span.kind, span.worker) == ("prune", "draft")]


VARIANTS = {
    "PEARL": {"prune.method": "none", "schedule.prefill": "sequential", "draft.gamma": 4},
    "parallel prefill": {"prune.method": "none"},
    "attention": {"prune.method": "attention"},
    "attention, waiting": {"prune.method": "attention", "prune.when": "wait"},
    "as many start-up tokens as fit": {"schedule.startup": "fit", "prune.method": "uniform"},
    "text only": {"draft.kind": "text_only", "prune.method": "none"},
}


@pytest.mark.sample(quick=1, full=3)
@pytest.mark.parametrize("name", full_but(["attention", "text only"], VARIANTS))
def test_variants_give_the_same_text(pairs, name):
    """All on one process: every clip brings its own settings."""
    captioner = pairs.sharing(**VARIANTS[name])
    for clip in ("one-object", "three-objects"):
        record = captioner.caption(CLIPS[clip])
        assert record.token_ids == pairs.plain(clip)
        looked = [span for span in record.trace.spans if span.worker == "draft" and span.kind == "vision"]
        assert bool(looked) == (name != "text only")


@pytest.mark.full
def test_drafting_with_the_targets_weights_and_nothing_left_behind(pairs):
    threads = set(threading.enumerate())
    captioner = pairs.loaded(**{"draft.kind": "self", "models.draft": None})
    assert captioner.caption(CLIP).token_ids == pairs.plain("one-object")
    pid = captioner.client.setup.slot.process.process.pid
    captioner.close()
    captioner.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert {one for one in threading.enumerate() if one.name != "vidspec-engine"} <= threads  # which the models keep


@pytest.mark.full
def test_seeded_sampling_gives_the_text_of_plain_decoding(pairs, same_process):
    """One draw for each emitted token, wherever the windows end: what the workers' timing decides does not show."""
    drawn = {"generate.temperature": 1.0, "generate.top_p": 0.95}
    texts = {}
    for seed, name in ((1, "parallelvlm"), (2, "hippo")):
        settings = {**drawn, "generate.seed": seed}
        texts[seed] = pairs.sharing("ar", **settings).caption(CLIP).token_ids
        captioner = pairs.sharing(name, **settings, **{"draft.gamma": 4})  # of one alone none would ever be pending
        assert captioner.caption(CLIP).token_ids == captioner.caption(CLIP).token_ids == texts[seed]
    assert texts[1] != texts[2]


@pytest.mark.full
def test_a_clip_that_nobody_wants_any_more_keeps_the_process(pairs, same_process):
    for moment in (0, 1, 2, 5):
        for number, _ in enumerate(pairs.first.stream(CLIP)):
            if number == moment:
                break


def test_an_error_of_the_consumer_keeps_the_process(pairs, same_process):
    def consume():
        for number, _ in enumerate(pairs.first.stream(CLIP)):
            if number == 3:
                raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        consume()


@pytest.mark.full
def test_one_process_has_many_clips_at_once(pairs, same_process):
    clips = list(CLIPS)[:4]
    together, captions, accepted = set(), {}, 0
    for clip, event in pairs.first.client.serve(ReadyClips(named_requests(pairs.first, clips)), batch=4):
        assert not isinstance(event, Exception), event
        together.add(len(pairs.slot.process._clips))
        if isinstance(event, Finished):
            captions[clip] = event.caption
            accepted += event.caption.counters["accepted"]
    assert {clip: one.token_ids for clip, one in captions.items()} == {clip: pairs.plain(clip) for clip in clips}
    assert 4 in together and accepted > 0
    drafted = [span for one in captions.values() for span in one.trace.spans if span.kind == "draft"]
    assert sum(dict(span.about)["emitted"] for span in drafted) == accepted


@pytest.mark.full
def test_a_newer_stream_leaves_an_older_one_alone(pairs, same_process):
    older, newer = pairs.first.stream(CLIP), pairs.first.stream(CLIPS["three-objects"])
    begun = [(next(older), next(newer)) for _ in range(4)]
    assert len(begun) == 4
    assert list(newer)[-1].caption.token_ids == pairs.plain("three-objects")
    assert list(older)[-1].caption.token_ids == pairs.plain("one-object")


def test_the_draft_has_its_share_of_the_processor(pairs):
    before = torch.get_num_threads()
    slot = pairs.sharing(**{"models.threads": 3}).client.setup.slot
    try:
        torch.set_num_threads(slot.target_threads + 1)
        with slot.sharing():
            assert torch.get_num_threads() == slot.target_threads
        assert torch.get_num_threads() == slot.target_threads + 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.full
def test_a_draft_that_accounts_late_stays(pairs, same_process, monkeypatch):
    """Such as one that is still reading a long prompt when the target has written the whole text."""
    process = pairs.slot.ready()
    monkeypatch.setattr(processes, "CloseClip", lambda: Propose(0, 0))  # which it does not answer
    monkeypatch.setattr(processes, "SPANS_TIMEOUT", 0.1)
    record = pairs.first.caption(CLIP)
    assert record.token_ids == pairs.plain("one-object")
    assert not [span for span in record.trace.spans if span.worker == "draft"]
    assert 0 < process.overdue < 60 and pairs.slot.ready() is process
    monkeypatch.undo()
    (number,) = process._clips
    process.send(number, processes.CloseClip())


def test_a_process_that_is_silent_for_too_long_is_replaced(pairs, monkeypatch):
    process = pairs.slot.ready()
    dropped = []
    monkeypatch.setattr(pairs.slot, "drop", dropped.append)
    for overdue, silent in ((61.0, 61.0), (59.0, 61.0), (61.0, 1.0), (1801.0, 1.0)):
        monkeypatch.setattr(type(process), "overdue", overdue)
        monkeypatch.setattr(process.process, "silent_s", lambda silent=silent: silent)
        pairs.slot.ready()
        dropped.append(overdue)
    assert dropped == [process, 61.0, 59.0, 61.0, process, 1801.0]


@pytest.mark.full
def test_a_forgotten_captioner_leaves_no_process(pairs):
    """Two captioners at the same time; nobody closes the second."""
    slot = DraftProcessSlot(pairs.slot.model, pairs.slot._where, pairs.first.client.profile)
    pid = slot.process.process.pid
    assert slot.process.alive
    del slot
    gc.collect()
    assert gone(pid)


def test_ctrl_c_cannot_reach_the_draft_even_while_it_starts(pairs):
    """It has a session of its own from the beginning."""
    assert os.getsid(pairs.slot.ready().process.pid) == pairs.slot.process.process.pid != os.getsid(0)
