"""Every second of a clip is given to one kind of work, on traces that are written down here."""

from __future__ import annotations

import pytest

from vidspec.bench.breakdown import breakdown
from vidspec.events.trace import Span, innermost


def span(worker, kind, start, end):
    return Span(worker, kind, float(start), float(end))


def test_what_lies_within_another_span_counts_once():
    spans = [span("target", "prune", 3, 4), span("target", "target_prefill", 1, 6), span("target", "verify", 7, 9)]
    found = breakdown(spans, 10.0)
    assert found.parts == {"target_prefill": 4.0, "prune": 1.0, "verify": 2.0, "other": 3.0}
    assert sum(found.parts.values()) == pytest.approx(found.wall)
    assert [(one.start, one.end, one.kind) for one in innermost(spans, 0.0, 10.0)] == [
        (1, 3, "target_prefill"),
        (3, 4, "prune"),
        (4, 6, "target_prefill"),
        (7, 9, "verify"),
    ]


def test_what_comes_after_the_last_token_does_not_count():
    found = breakdown([span("target", "verify", 1, 3), span("draft", "draft", 2, 9)], 4.0)
    assert found.parts == {"draft": 1.0, "verify": 2.0, "other": 1.0}
    assert found.lanes == {"target": {"verify": 2.0}, "draft": {"draft": 2.0}}


def test_the_draft_is_hidden_under_the_target_and_counts_where_the_target_waits():
    spans = [
        span("target", "target_prefill", 0, 4),
        span("draft", "draft_prefill", 0, 2),
        span("draft", "draft", 2, 6),
        span("target", "wait", 4, 7),
        span("target", "verify", 7, 9),
    ]
    found = breakdown(spans, 10.0)
    assert found.parts == {"target_prefill": 4.0, "draft": 2.0, "verify": 2.0, "wait": 1.0, "other": 1.0}
    assert found.hidden == {"draft_prefill": 2.0, "draft": 2.0}
    assert found.overlap == 4.0
    assert (found.busy("target"), found.busy("draft")) == (6.0, 6.0)
    assert found.lanes["target"]["wait"] == 3.0


def test_an_empty_trace_is_all_other():
    assert breakdown([], 2.0).parts == {"other": 2.0}
