import json

import pytest

from tests.display.pages.clips_of_reports import SPANS
from vidspec.display.pages.timeline import from_chrome, timeline
from vidspec.events.trace import Span, to_chrome


def test_lanes_hold_each_workers_pieces_in_percent_of_the_whole():
    made = timeline(SPANS)
    target, draft = made.lanes
    assert (target.worker, draft.worker) == ("target", "draft")
    assert [bar.group for bar in target.bars] == ["vision", "prefill", "verify"]
    assert [round(bar.left) for bar in target.bars] == [0, 20, 60] and round(target.bars[-1].width) == 40
    assert [bar.group for bar in draft.bars] == ["prune", "wasted"]
    assert "round 1, 5 rows" in target.bars[-1].about and "not emitted" in draft.bars[-1].about
    assert made.undrawn == 1 and round(made.decoding) == 50
    assert made.groups == ["vision", "prefill", "prune", "verify", "wasted"]


def test_seconds_count_once_for_the_innermost():
    nested = [Span("target", "target_prefill", 0.0, 1.0), Span("target", "prune", 0.25, 0.5)]
    (lane,) = timeline(nested).lanes
    assert lane.seconds == {"target_prefill": 0.75, "prune": 0.25}
    assert [kind for _, kind, _, _ in lane.kinds] == ["target prefill", "prune"]


def test_nothing_timed_gives_no_timeline():
    assert timeline(()) is None


def test_ticks_are_round_times():
    assert [label for _, label in timeline([Span("target", "verify", 0.0, 1.5)]).ticks] == [
        "0", "200 ms", "400 ms", "600 ms", "800 ms", "1.00 s", "1.20 s", "1.40 s",
    ]  # fmt: skip


def test_a_trace_file_is_read_back():
    from vidspec.runs.trace_file import merge_traces

    parts = [("a.mp4", to_chrome(SPANS)), ("b.mp4", to_chrome(SPANS[:1])), ("a.mp4", to_chrome(SPANS[:2]))]
    found = from_chrome(json.loads(json.dumps(merge_traces(parts))))
    assert {path: [len(one) for one in traces] for path, traces in found.items()} == {"a.mp4": [6, 2], "b.mp4": [1]}
    back = {(one.worker, one.kind, one.about) for one in found["a.mp4"][0]}
    assert back == {(one.worker, one.kind, one.about) for one in SPANS}


@pytest.mark.parametrize("content", [{}, {"traceEvents": [{"ph": "X"}]}, {"traceEvents": 3}, []])
def test_another_file_is_refused(content):
    with pytest.raises(ValueError, match="no trace"):
        from_chrome(content)
