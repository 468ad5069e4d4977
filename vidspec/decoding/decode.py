"""Decoding of one clip by its schedule, from its read frames to its record."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from copy import copy
from itertools import pairwise
from statistics import fmean, median

import torch

from vidspec.decoding.captioner_models import models_record
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.part_answers import check_text
from vidspec.decoding.report import report
from vidspec.decoding.schedules.autoregressive import autoregressive
from vidspec.decoding.sequence import Sequence
from vidspec.engine.requests import Steps
from vidspec.errors import GenerationError
from vidspec.events.events import Finished
from vidspec.events.trace import Trace

#: Untimed steps, after which processor caches hold the target's weights; fewest and most timed steps.
UNTIMED, LEAST, MOST = 4, 8, 48

#: Timing ends after so many seconds, and after this share of the clip's time, but not before LEAST steps.
SECONDS, SHARE = 0.06, 0.05

#: Largest ratio between the medians of the earlier and the later half; steps slower than SPIKE medians, which plain
#: decoding did not cause, are left out.
MEDIAN_RATIO, SPIKE = 1.1, 2.0


def decode(sequence: Sequence, can_estimate: Callable[[Sequence], bool]) -> Steps[None]:
    """Decode a clip by its schedule, and emit ``Finished`` after the schedule's events.

    Args:
        sequence: the clip.
        can_estimate: True for a finished clip whose speed-up may be estimated.
    """
    setup = sequence.setup
    try:
        sequence.restore_frames()
        sequence.attempt()
        yield from setup.schedule(sequence)
        check_text(sequence)
    except torch.OutOfMemoryError as error:
        count = len(sequence.job.frames.frames)
        raise GenerationError(
            f"{sequence.job.path}: {count} frames do not fit into the device's memory",
            hint="take fewer --frames, or a smaller dtype",
            kind="memory",
        ) from error
    finally:
        sequence.end_attempt()
    drafter, cache = sequence.drafting.drafter if sequence.drafting is not None else None, sequence.job.cache
    if cache is not None:
        cache.add_text([sequence.target.span, *(drafter.spans if drafter is not None else ())], sequence.token_ids)
    plain_step_s = None
    if can_estimate(sequence):
        sequence.deadline = None  # its text is complete
        plain_step_s = yield from time_plain_step(sequence)
    if drafter is not None:
        drafter.finish(sequence.token_ids)
    sequence.emit(Finished(report(sequence, models_record(setup), plain_step_s)))
    sequence.drafting = None  # frees their entries, even if an error of another clip refers to this one
    del sequence.target


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
    plain.attempt()

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
