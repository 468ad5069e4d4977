"""Timing of a plain decoding step after a clip's text, for the speed-up estimate."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items
from copy import copy
from itertools import pairwise
from statistics import fmean, median

from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.schedules.autoregressive import autoregressive
from vidspec.decoding.sequence import Sequence
from vidspec.engine.requests import Steps
from vidspec.events.trace import Trace

__all__ = ["time_plain_step"]

#: Untimed steps, after which processor caches hold the target's weights; fewest and most timed steps.
UNTIMED, LEAST, MOST = 4, 8, 48
#: Timing ends after so many seconds, and after this share of the clip's time, but not before LEAST steps.
SECONDS, SHARE = 0.06, 0.05
#: Largest ratio between the medians of the earlier and the later half; steps slower than SPIKE medians, which plain
#: decoding did not cause, are left out.
MEDIAN_RATIO, SPIKE = 1.1, 2.0


def time_plain_step(sequence: Sequence) -> Steps[float | None]:
    """Return the mean seconds per token of plain decoding, host work included.

    :func:`autoregressive` continues after the text on the clip's cache, or over its last entries if there is no room
    after it; the clip's tokens, events and trace do not change.

    Args:
        sequence: its text is complete, and it shares neither the models nor its entries with another.

    Returns:
        None if the earlier steps take another time than the later ones, as on a busy machine, or if recurrent states
        leave no room for enough steps.
    """
    span, spent = sequence.target.span, sequence.trace.elapsed()
    if span.states is None:
        read = sequence.prefilled if sequence.job.cache is not None else None  # kept for a further question
        span.rollback(max(read.prompt_tokens if read else 0, min(span.length, span.room - UNTIMED - MOST)))
    first = span.length
    steps = min(UNTIMED + MOST, span.room - first)
    if steps < UNTIMED + LEAST:
        return None
    plain = copy(sequence)
    plain.events, plain.trace, plain.target = deque(), Trace(sequence.trace.synchronise), copy(sequence.target)
    plain.target.tapped = ()
    plain.attempt(sequence.setup)

    def enough(token_ids: Items[int]) -> bool:
        return len(token_ids) > UNTIMED + LEAST and plain.trace.elapsed() > max(SECONDS, SHARE * spent)

    plain.limits = StoppingRules(steps + 1, stopped=enough)
    plain.emit_first()
    yield from autoregressive(plain)
    if span.states is None:
        span.rollback(first)
    times = [after.elapsed - before.elapsed for before, after in pairwise(plain.rounds[UNTIMED:])]
    early, late = median(times[: len(times) // 2]), median(times[len(times) // 2 :])
    if max(early, late) > MEDIAN_RATIO * min(early, late):
        return None
    return fmean(seconds for seconds in times if seconds < SPIKE * max(early, late))
