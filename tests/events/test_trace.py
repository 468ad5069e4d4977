"""The trace, under a clock that tells what it is told."""

import json
from dataclasses import FrozenInstanceError, fields

import pytest

from vidspec.bench.breakdown import breakdown
from vidspec.events.events import Finished, Opened, Prefilled, Round
from vidspec.events.trace import KINDS, Span, Trace, to_chrome


class Clock:
    def __init__(self, now=100.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def traced(clock):
    trace = Trace(clock=clock)
    for kind, worker, seconds in (("vision", "target", 1.0), ("draft", "draft", 0.25), ("vision", "draft", 2.0)):
        with trace.span(kind, worker):
            clock.now += seconds
        clock.now += 0.5
    return trace


def test_spans_count_from_the_beginning(clock):
    assert traced(clock).spans == [
        Span("target", "vision", 0.0, 1.0),
        Span("draft", "draft", 1.5, 1.75),
        Span("draft", "vision", 2.25, 4.25),
    ]


def test_totals_are_by_kind_in_the_order_of_the_kinds(clock):
    totals = traced(clock).totals()
    assert totals == {"vision": 3.0, "draft": 0.25}
    assert list(totals) == [kind for kind in KINDS if kind in totals]


@pytest.mark.parametrize("lap", [True, False], ids=["lap", "span"])
def test_a_collection_is_of_the_worker_that_it_interrupts(clock, lap):
    """Whoever reports one does not know which worker's span is open; it must not read as both working at once."""
    trace = Trace(clock=clock)

    def collect():
        begun = trace.now()
        clock.now += 1.0
        trace.add("collect", "target", begun, trace.now())

    collect()
    if lap:
        trace.lap()
        collect()
        clock.now += 0.5
        trace.lap("draft", "draft")
    else:
        with trace.span("draft", "draft"):
            collect()
            clock.now += 0.5
    assert trace.by_worker() == {"target": {"collect": 1.0}, "draft": {"draft": 0.5, "collect": 1.0}}
    parts = breakdown(trace.spans, trace.now())
    assert parts.overlap == 0 and parts.parts == {"draft": 0.5, "collect": 2.0, "other": 0.0}


def test_a_span_ends_when_its_work_fails(clock):
    trace = Trace(clock=clock)
    with pytest.raises(RuntimeError), trace.span("prune"):
        clock.now += 3
        raise RuntimeError
    assert trace.totals() == {"prune": 3.0}


def test_the_device_is_waited_for_at_both_ends(clock):
    """Queued work counts for the span that queued it: synchronising takes the time here."""

    def synchronise():
        waited.append(clock.now)
        clock.now += 1

    waited = []
    trace = Trace(synchronise, clock)
    with trace.span("prune"):
        clock.now += 10
    assert len(waited) == 2
    assert trace.spans == [Span("target", "prune", 1.0, 12.0)]


def test_laps_of_a_round_follow_each_other_and_wait_for_nothing(clock):
    """Their passes end with a read-back, which has waited; what other clips' passes took is left out."""
    trace = Trace(lambda: pytest.fail("waited"), clock)
    trace.lap()
    clock.now += 10
    assert trace.lap("draft", "draft") == 10.0
    clock.now += 5
    trace.waited += 2
    assert trace.lap("verify", about=(("rows", 6),)) == 3.0
    clock.now += 1
    trace.lap()
    clock.now += 1
    assert trace.lap("rollback") == 1.0
    assert trace.spans == [
        Span("draft", "draft", 0.0, 10.0),
        Span("target", "verify", 12.0, 15.0, (("rows", 6),)),
        Span("target", "rollback", 16.0, 17.0),
    ]


def test_nested_work_counts_once(clock):
    trace = Trace(clock=clock)
    with trace.span("target_prefill"):
        clock.now += 1
        with trace.span("prune"):
            clock.now += 2
        with trace.span("signals"):
            clock.now += 4
            with trace.span("prune"):
                clock.now += 8
    with trace.span("prune"):
        clock.now += 16
    trace.add("draft", "draft", 0.0, 31.0)  # the other worker's time is its own
    assert trace.by_worker() == {
        "target": {"target_prefill": 1.0, "signals": 4.0, "prune": 26.0},
        "draft": {"draft": 31.0},
    }
    assert trace.totals() == {"target_prefill": 1.0, "signals": 4.0, "prune": 26.0, "draft": 31.0}


def test_elapsed_does_not_wait_for_the_device(clock):
    trace = Trace(lambda: pytest.fail("waited"), clock)
    clock.now += 3
    assert trace.elapsed() == 3.0


def test_chrome(clock):
    exported = json.loads(json.dumps(to_chrome(traced(clock))))
    assert exported["displayTimeUnit"] == "ms"
    tracks = [event for event in exported["traceEvents"] if event["ph"] == "M"]
    assert {event["args"]["name"]: event["tid"] for event in tracks if event["name"] == "thread_name"} == {
        "target": 1,
        "draft": 2,
    }
    assert [event["args"]["sort_index"] for event in tracks if event["name"] == "thread_sort_index"] == [1, 2]
    assert [event for event in exported["traceEvents"] if event["ph"] == "X"] == [
        {"ph": "X", "pid": 1, "tid": 1, "name": "vision", "ts": 0.0, "dur": 1e6},
        {"ph": "X", "pid": 1, "tid": 2, "name": "draft", "ts": 1.5e6, "dur": 0.25e6},
        {"ph": "X", "pid": 1, "tid": 2, "name": "vision", "ts": 2.25e6, "dur": 2e6},
    ]
    assert to_chrome(traced(Clock()).spans) == exported
    assert to_chrome([])["traceEvents"] == []


def test_chrome_marks_what_was_in_vain(clock):
    trace = Trace(clock=clock)
    trace.add("draft", "draft", 0.0, 1.0, (("epoch", 0), ("position", 4), ("emitted", True)))
    trace.add("draft", "draft", 1.0, 2.0, (("epoch", 0), ("position", 5), ("emitted", False)))
    trace.lap()
    clock.now += 1
    trace.lap("verify", about=(("round", 3), ("rows", 2)))
    verify, good, vain = (event for event in to_chrome(trace)["traceEvents"] if event["ph"] == "X")
    assert (good["name"], good["args"]) == ("draft", {"epoch": 0, "position": 4, "emitted": True})
    assert (vain["name"], vain["cat"], vain["args"]["emitted"]) == ("draft (wasted)", "draft", False)
    assert (verify["name"], verify["args"]) == ("verify", {"round": 3, "rows": 2})


def test_chrome_slices_nest():
    """Viewers take slices of one track in order: what begins together comes outermost first, and nothing crosses."""
    spans = [
        Span("target", "prune", 0.1, 0.2),
        Span("target", "target_prefill", 0.1, 0.7),
        Span("target", "wait", 0.7, 1),
    ]
    slices = [event for event in to_chrome(spans)["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in slices] == ["target_prefill", "prune", "wait"]
    assert slices[0]["ts"] + slices[0]["dur"] == slices[2]["ts"]


def test_kinds_are_those_of_the_document():
    assert KINDS == (
        "decode_video", "preprocess", "vision", "caption", "target_prefill", "signals", "prune", "draft_prefill",
        "draft", "verify", "accept", "rollback", "collect", "wait",
    )  # fmt: skip


@pytest.mark.parametrize("event", [Opened, Prefilled, Round, Finished])
def test_events_are_values(event):
    one, same = (event(*range(len(fields(event)))) for _ in range(2))
    assert one == same
    with pytest.raises(FrozenInstanceError):
        setattr(one, fields(event)[0].name, "changed")
