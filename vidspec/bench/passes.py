"""What single forward passes cost on a prompt's own caches: T_p(n) and T_q(alpha), with rollback after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from vidspec.engine.device import synchroniser
from vidspec.engine.forward import Engine
from vidspec.engine.rows import Rows
from vidspec.engine.slab import KVSpan
from vidspec.models.base import Prefix
from vidspec.pace.gamma import Rounding, window_for

__all__ = ["ALPHAS", "MOST_ROWS", "Passes", "at", "measure_passes", "prefilled_at", "recommended"]

MOST_ROWS = 32
ALPHAS = (0.0, 0.5, 0.9)


@dataclass(frozen=True)
class Passes:
    """Medians, in seconds.

    Attributes:
        target: T_p(n) by rows n, over the whole prompt.
        draft: T_q(alpha) of one row by alpha, over the pruned prompt; empty where nobody drafts.
        kept: visual tokens that were left, by alpha.
    """

    target: Mapping[int, float]
    draft: Mapping[float, float]
    kept: Mapping[float, int]

    def ratio(self, alpha: float) -> float | None:
        """c = T_p(1) / T_q(alpha); None where that alpha was not measured."""
        return self.target[1] / self.draft[alpha] if alpha in self.draft else None

    def gamma(self, alpha: float, rounding: Rounding = "down") -> int | None:
        """The window that fills one target pass, see :func:`recommended`."""
        return recommended(self.target, self.draft[alpha], rounding) if alpha in self.draft else None


def at(target: Mapping[int, float], rows: int) -> float:
    """T_p of some rows: measured, else between its measured neighbours on a line, else the nearest's."""
    below = [n for n in target if n <= rows]
    above = [n for n in target if n >= rows]
    if not below or not above:
        return target[max(below)] if below else target[min(above)]
    low, high = max(below), min(above)
    return target[low] if low == high else target[low] + (target[high] - target[low]) * (rows - low) / (high - low)


def recommended(target: Mapping[int, float], tq: float, rounding: Rounding = "down") -> int:
    """gamma = T_p(gamma) / T_q(alpha) (ParallelVLM Eq. 6): the window where both agree, reached from T_p(1).

    T_p grows with its rows, so the windows that are tried do too, up to 32.
    """
    gamma = window_for(at(target, 1), tq, rounding)
    for _ in range(MOST_ROWS):
        following = window_for(at(target, gamma), tq, rounding)
        if following <= gamma:
            break
        gamma = following
    return gamma


def prefilled_at(engine: Engine, prefix: Prefix, alpha: float) -> tuple[KVSpan, int]:
    """A prompt without the share ``alpha`` of its visual tokens, evenly spaced, read into a cache of its own.

    What is kept does not matter to the time, only how much. Returns the sequence and how many visual tokens it kept.
    """
    tokens = len(prefix.visual)
    keep = max(1, round(tokens * (1 - alpha))) if tokens else 0
    chosen = torch.arange(keep, dtype=torch.long) * tokens // max(1, keep)
    pruned = prefix if keep == tokens else prefix.keep(chosen.to(prefix.embeds.device))
    return engine.prefill(pruned, MOST_ROWS + 1).span, keep


def measure_passes(
    target: tuple[Engine, KVSpan],
    drafts: Mapping[float, tuple[Engine, KVSpan]],
    *,
    rows: Sequence[int] = tuple(range(1, MOST_ROWS + 1)),
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
    kept: Mapping[float, int] | None = None,
) -> Passes:
    """Time passes in turn, all of them once before any of them again, after a warm-up of each; medians.

    Args:
        target: the target over the whole prompt, with room for the most rows.
        drafts: by alpha the draft over its prompt.
        rows: n of T_p(n).
        repeats: of everything.
        clock: seconds.
        kept: goes into the result.
    """
    times: dict[tuple[str, float], list[float]] = {}
    for turn in range(repeats + 1):
        for n in rows:
            seconds = _timed(*target, n, clock)
            if turn:
                times.setdefault(("target", n), []).append(seconds)
        for alpha, draft in drafts.items():
            seconds = _timed(*draft, 1, clock)
            if turn:
                times.setdefault(("draft", alpha), []).append(seconds)
    return Passes(
        {n: median(times["target", n]) for n in rows},
        {alpha: median(times["draft", alpha]) for alpha in drafts},
        dict(kept or {}),
    )


def _timed(engine: Engine, span: KVSpan, rows: int, clock: Callable[[], float]) -> float:
    wait = synchroniser(engine.model.device)
    length = span.length
    wait()
    start = clock()
    engine.run([Rows(span, [0] * rows)])
    wait()
    seconds = clock() - start
    span.rollback(length)
    return seconds
