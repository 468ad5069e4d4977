"""The time of a plain decoding step, measured after a clip's text, for the estimate of the speed-up."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items
from copy import copy
from itertools import pairwise
from statistics import fmean, median

from vidspec.decoding.autoregressive import autoregressive
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.sequence import Sequence
from vidspec.engine.requests import Steps
from vidspec.events.trace import Trace

__all__ = ["time_plain_step"]

#: Steps before the timed ones, after which processor caches hold the target's weights; timed steps at least, at most.
UNTIMED, LEAST, MOST = 4, 8, 48
#: Steps beyond the least end after so many seconds, and after this share of the time that the clip has taken.
SECONDS, SHARE = 0.06, 0.05
#: The medians of the earlier and of the later half may differ by this factor; slower steps than so many medians, which
#: are not plain decoding's own, are left out.
APART, SPIKE = 1.1, 2.0


def time_plain_step(sequence: Sequence) -> Steps[float | None]:
    """Return the mean seconds from token to token of plain decoding, the work on the host included.

    :func:`autoregressive` itself goes on after the text, on the clip's cache, or over its last entries where there is
    no room after it; the clip's tokens, events and trace do not change.

    Args:
        sequence: its text is complete, and it shares neither the models nor its cache with another.

    Returns:
        None where the earlier steps take another time than the later ones, as on a machine that is busy with other
        work, and where recurrent states leave no room for enough steps.
    """
    span, spent = sequence.target.span, sequence.trace.elapsed()
    if span.states is None:
        span.rollback(max(0, min(span.length, span.room - UNTIMED - MOST)))
    steps = min(UNTIMED + MOST, span.room - span.length)
    if steps < UNTIMED + LEAST:
        return None
    plain = copy(sequence)
    plain.events, plain.trace, plain.target = deque(), Trace(sequence.trace.synchronise), copy(sequence.target)
    plain.target.tapped = ()
    plain.attempt(sequence.setup)

    def enough(token_ids: Items[int]) -> bool:
        return len(token_ids) > UNTIMED + LEAST and plain.trace.elapsed() > max(SECONDS, SHARE * spent)

    plain.limits = StoppingRules(steps + 1, stopped=enough)
    yield from autoregressive(plain)
    times = [after.elapsed - before.elapsed for before, after in pairwise(plain.rounds[UNTIMED:])]
    early, late = median(times[: len(times) // 2]), median(times[len(times) // 2 :])
    if max(early, late) > APART * min(early, late):
        return None
    return fmean(one for one in times if one < SPIKE * max(early, late))
