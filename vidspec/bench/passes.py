"""Measures single forward passes on a prompt's own caches: T_p(n) and T_q(alpha), with rollback after each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from vidspec.bench.turns import measure_in_turns, time_call
from vidspec.draft_length.costs import pass_times
from vidspec.draft_length.window import Rounding, settled_window
from vidspec.engine.device import synchroniser
from vidspec.engine.forward import Engine
from vidspec.engine.rows import Rows
from vidspec.engine.slab import KVSpan
from vidspec.models.base import EmbeddedPrompt

MAX_ROWS = 32
ALPHAS = (0.0, 0.5, 0.9)


@dataclass(frozen=True)
class TimedPasses:
    """Median seconds of single passes.

    Attributes:
        target: T_p(n) by rows n, over the whole prompt.
        draft: T_q(alpha) of one row by alpha, over the pruned prompt; empty without a draft.
        kept: visual tokens kept, by alpha.
    """

    target: Mapping[int, float]
    draft: Mapping[float, float]
    kept: Mapping[float, int]

    def cost_ratio(self, alpha: float) -> float | None:
        """Return c = T_p(1) / T_q(alpha); None if that alpha was not measured."""
        return self.target[1] / self.draft[alpha] if alpha in self.draft else None

    def gamma(self, alpha: float, rounding: Rounding = "down") -> int | None:
        """Return the window that fills one target pass, see :func:`~vidspec.draft_length.window.settled_window`."""
        verify = pass_times(list(self.target.items()))
        return settled_window(verify, self.draft[alpha], rounding, MAX_ROWS) if alpha in self.draft else None


def prefill_pruned(engine: Engine, prefix: EmbeddedPrompt, alpha: float) -> tuple[KVSpan, int]:
    """Prefill a prompt without the share ``alpha`` of its visual tokens, evenly spaced, into a cache of its own.

    The time depends on the number of kept tokens, not on the choice. Returns the span and the number of visual tokens
    kept.
    """
    tokens = len(prefix.visual)
    keep = max(1, round(tokens * (1 - alpha))) if tokens else 0
    chosen = torch.arange(keep, dtype=torch.long) * tokens // max(1, keep)
    pruned = prefix if keep == tokens else prefix.keep(chosen.to(prefix.embeds.device))
    return engine.prefill(pruned, MAX_ROWS + 1).span, keep


def measure_passes(
    target: tuple[Engine, KVSpan],
    drafts: Mapping[float, tuple[Engine, KVSpan]],
    *,
    rows: Sequence[int] = tuple(range(1, MAX_ROWS + 1)),
    repeats: int = 5,
    clock: Callable[[], float] | None = None,
    kept: Mapping[float, int] | None = None,
) -> TimedPasses:
    """Time passes in turns, after a warm-up of each; return medians.

    Args:
        target: engine and span of the whole prompt, with room for the most rows.
        drafts: engine and span of the draft's prompt, by alpha.
        rows: n of T_p(n).
        repeats: of everything.
        clock: returns seconds.
        kept: visual tokens kept, by alpha; copied into the result.
    """
    passes = {("target", float(n)): partial(time_pass, *target, n) for n in rows}
    passes |= {("draft", alpha): partial(time_pass, *draft, 1) for alpha, draft in drafts.items()}
    seconds = {key: median(one[clock]) for key, one in measure_in_turns(passes, [clock], repeats).items()}
    return TimedPasses(
        {n: seconds["target", n] for n in rows},
        {alpha: seconds["draft", alpha] for alpha in drafts},
        dict(kept or {}),
    )


def time_pass(
    engine: Engine, span: KVSpan, work: int | Callable[[], object], clock: Callable[[], float] | None = None
) -> float:
    """Return the seconds of a pass of ``work`` rows, or of other work on a span; the span is rolled back."""
    if isinstance(work, int):
        work = partial(engine.run, [Rows(span, [0] * work)])
    length = span.length
    seconds = time_call(work, synchroniser(engine.model.device), clock)
    span.rollback(length)
    return seconds
