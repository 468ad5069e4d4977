"""What the speed model says of a measured run: its own forward times and lengths, put into the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

from vidspec.draft_length import speed
from vidspec.events.record import Caption

__all__ = ["predicted"]


def predicted(runs: Sequence[Caption], plain: Sequence[Caption]) -> float | None:
    """Decode speed-up over plain decoding as the speed model has it; None for what it does not describe.

    T_p(1) is the median pass of ``plain``; T_p of a window, T_q and the accepted lengths are those of ``runs``. In
    turns: (tau + 1) T_p(1) / (passes T_q + T_p(window)). At the same time: the renewal formula with beta = M / (1 + M)
    of the run length M and the mean window.

    Args:
        runs, plain: records of one method and of plain decoding, with their traces.
    """
    singles = _spans(plain, "verify")
    drafts, windows = _spans(runs, "draft"), _spans(runs, "verify")
    counters = [run.counters for run in runs if run.counters.get("drafted")]
    if not (singles and drafts and windows and counters):
        return None
    tp1, tp = median(singles), median(windows)
    passes = sum(one["target_forwards"] for one in counters)
    if any(run.schedule.get("kind") == "parallel" for run in runs):
        corrections = sum(one["corrections"] + 1 for one in counters)
        beta = speed.beta_of_run_length(sum(one["accepted"] for one in counters) / corrections)
        gamma = max(1, round(mean(run.schedule["gamma"] or 1 for run in runs)))
        return speed.parallel(beta, gamma, tp1, tp, median(drafts))
    # In turns a draft span is a whole window.
    tokens = sum(one["emitted"] - 1 for one in counters) / passes
    return speed.sequential(tokens, 1, tp1, tp, median(drafts))


def _spans(runs: Sequence[Caption], kind: str) -> list[float]:
    return [
        span.end - span.start for run in runs if run.trace is not None for span in run.trace.spans if span.kind == kind
    ]
