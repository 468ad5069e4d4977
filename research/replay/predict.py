"""Speed-ups from forward times and acceptance: schedules simulated under the virtual clock, next to formulas.

Only ratios matter, so all times are in one unit of the caller's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from research import speed
from research.replay.simulated import SimulatedWorkers, simulate
from research.replay.virtual import Costs, Run, Text, simulate_sequential
from vidspec.decoding.scheduler import ParallelSettings, Scheduler
from vidspec.draft_length.costs import PassCosts
from vidspec.draft_length.window import WindowSize


@dataclass(frozen=True)
class Prefill:
    """Prefill times: of the target's whole prompt and the draft's pruned one.

    ``overlap``: the draft reads while the target does, at once or ``signals`` after the target began.
    """

    target: float = 0.0
    draft: float = 0.0
    overlap: bool = True
    signals: float | None = None


@dataclass(frozen=True)
class Times:
    """Forward times: ``verify(rows)`` of the target, ``draft`` of the draft on one token, ``latency`` of a message."""

    verify: Callable[[int], float]
    draft: float
    latency: float = 0.0
    prefill: Prefill = Prefill()

    def costs(self) -> Costs:
        """Return these times as the simulation's costs."""
        prefill = self.prefill
        return Costs(
            self.verify,
            lambda: self.draft,
            target_prefill=prefill.target,
            draft_prefill=prefill.draft,
            signals=prefill.signals,
            latency=lambda: self.latency,
        )


def geometric_lengths(mean: float, count: int, seed: int = 0) -> list[int]:
    """Return geometric run lengths of mean ``mean``, as from independent acceptance, in random order.

    They are the quantiles of the geometric distribution instead of draws from it, to reduce variance.
    """
    beta = speed.beta_of_run_length(mean)
    if beta == 0:
        return [0] * count
    lengths = [int(math.log((i + 0.5) / count) / math.log(beta)) for i in range(count)]
    lengths[0] += round(mean * count) - sum(lengths)  # the longest run includes the tail beyond it
    random.Random(seed).shuffle(lengths)
    return lengths


def even_lengths(mean: float, count: int = 400) -> list[int]:
    """Return ``count`` integer lengths as near ``mean`` as possible, equal to it on average to 1 / count."""
    marks = [math.floor(mean * i + 1e-9) for i in range(count + 1)]
    return [b - a for a, b in pairwise(marks)]


def parallel_run(
    text: Text,
    times: Times,
    window: WindowSize,
    tokens: int,
    startup: int | None = None,
    measured: PassCosts | None = None,
) -> Run:
    """Simulate ``tokens`` tokens by the parallel schedule.

    ``startup``: see ``ParallelSettings``; ``measured``: see ``SimulatedWorkers``.
    """
    prefill = times.prefill
    settings = ParallelSettings(
        tokens, overlap=prefill.overlap, startup=startup, await_kept=prefill.signals is not None
    )
    return simulate(Scheduler(settings, window), SimulatedWorkers(text, times.costs(), measured=measured))


def sequential_run(text: Text, times: Times, gamma: int, tokens: int) -> Run:
    """Simulate ``tokens`` tokens by the sequential schedule; gamma 0 is plain decoding."""
    return simulate_sequential(text, times.costs(), max_new_tokens=tokens, gamma=gamma, eos=frozenset())


def speedup(runs: Sequence[Run], times: Times, *, end_to_end: bool = False) -> float | None:
    """Return the speed-up over plain decoding with the same times: of tokens after the first round, or end to end.

    For several runs it is the ratio of totals: chance averages out, and texts count by their length. None if nothing
    was decoded.
    """
    if end_to_end:
        plain = sum(times.prefill.target + (len(run.tokens) - 1) * times.verify(1) for run in runs)
        return plain / sum(run.times[-1] for run in runs)
    spent = sum(run.decode_s for run in runs)
    return sum(run.decoded for run in runs) * times.verify(1) / spent if spent else None
