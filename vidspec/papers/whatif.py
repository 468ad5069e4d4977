"""What would a method gain with these forward times and this acceptance: formula and simulation beside each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vidspec.decoding.parallel import Scheduler, Settings
from vidspec.pace import speed
from vidspec.pace.base import WindowSize
from vidspec.pace.gamma import AutoGamma, FixedGamma, Rounding, window_for
from vidspec.papers.predict import Times, geometric_lengths, sequential_run
from vidspec.papers.simulated import SimulatedWorkers, simulate
from vidspec.papers.virtual import Pattern, Run, Text

__all__ = ["HIGHEST_GAMMA", "Estimate", "best_chain", "chain_speedup", "settled_window", "what_if"]

HIGHEST_GAMMA = 32
#: Tokens that are simulated altogether, in texts of the wanted length.
SIMULATED = 8_000


@dataclass(frozen=True)
class Estimate:
    """One way of decoding. ``formula`` and ``predicted`` (simulated) are decode speed-ups, ``end_to_end`` is simulated.

    ``run`` is one of the simulated texts, None where there is only a formula.
    """

    method: str
    gamma: int
    formula: float
    predicted: float | None
    end_to_end: float | None
    tokens_per_pass: float
    run: Run | None


def settled_window(times: Times, rounding: Rounding = "down") -> int:
    """The window that fills a target pass on that window, from below: where ``AutoGamma`` settles."""
    gamma = 1
    while True:
        wider = window_for(times.verify(gamma), times.draft, rounding, highest=HIGHEST_GAMMA)
        if wider <= gamma:
            return gamma
        gamma = wider


def best_chain(beta: float, times: Times, lowest: int = 1) -> int:
    """The chain length with the highest sequential speed-up by formula; ``lowest`` 0 allows for none."""
    return max(range(lowest, HIGHEST_GAMMA + 1), key=lambda gamma: chain_speedup(beta, gamma, times))


def what_if(
    times: Times, beta: float, gamma: int | None, *, tokens: int = 512, seed: int = 0, rounding: Rounding = "down"
) -> list[Estimate]:
    """Plain, sequential and parallel decoding of ``tokens`` tokens that are accepted independently with ``beta``.

    ``gamma`` None: for the sequential chain the best by formula, for the parallel schedule what it measures itself.
    """
    chain = best_chain(beta, times) if gamma is None else gamma
    window = settled_window(times, rounding) if gamma is None else gamma
    tp1, tp = times.verify(1), times.verify(window)
    # One after the other: without overlap the sequential schedule reads its prompts in turn.
    apart = replace(times, prefill=replace(times.prefill, overlap=False, signals=None))
    texts = [_text(beta, tokens, seed + i) for i in range(max(1, SIMULATED // tokens))]
    sizes = [AutoGamma(rounding=rounding, highest=HIGHEST_GAMMA) if gamma is None else FixedGamma(gamma) for _ in texts]
    return [
        _estimate("autoregressive", 0, 1.0, [sequential_run(texts[0], apart, 0, tokens)], apart),
        _estimate(
            "sequential",
            chain,
            chain_speedup(beta, chain, times),
            [sequential_run(text, apart, chain, tokens) for text in texts],
            apart,
        ),
        _estimate(
            "parallel",
            window,
            speed.parallel_with_abort(beta, window, tp1, tp, times.draft),
            [_parallel(text, times, size, tokens) for text, size in zip(texts, sizes, strict=True)],
            times,
        ),
        Estimate(
            "parallel, one shared device",
            window,
            speed.parallel(beta, window, tp1, tp, times.draft, shared=True),
            None,
            None,
            _per_round(beta, window),
            None,
        ),
    ]


def _text(beta: float, tokens: int, seed: int) -> Pattern:
    if beta == 1:
        return Pattern(lambda position: True)
    return Pattern.of_lengths(geometric_lengths(beta / (1 - beta), max(20, round(tokens * (1 - beta))), seed))


def _parallel(text: Text, times: Times, size: WindowSize, tokens: int) -> Run:
    prefill = times.prefill
    if prefill.target == 0:  # the draft needs some time for its start-up tokens
        times = replace(times, prefill=replace(prefill, target=times.verify(1)))
    settings = Settings(tokens, overlap=prefill.overlap, startup=size.gamma, await_kept=prefill.signals is not None)
    return simulate(Scheduler(settings, size), SimulatedWorkers(text, times.costs()))


def _estimate(method: str, gamma: int, formula: float, runs: list[Run], times: Times) -> Estimate:
    """Of several runs the totals: chance averages out, and a long text does not count less than a short one."""
    decoded, passes = sum(run.decoded for run in runs), sum(len(run.rounds) - 1 for run in runs)
    spent = sum(run.decode_s for run in runs)
    whole = sum(run.times[-1] for run in runs)
    plain = sum(times.prefill.target + (len(run.tokens) - 1) * times.verify(1) for run in runs)
    return Estimate(
        method,
        gamma,
        formula,
        decoded * times.verify(1) / spent if spent else None,
        plain / whole if times.prefill.target > 0 else None,
        decoded / passes if passes else 0.0,
        runs[0],
    )


def _per_round(beta: float, gamma: int) -> float:
    return float(gamma) if beta == 1 else 1 / (1 - beta) / speed.run_rounds(beta, gamma)


def chain_speedup(beta: float, gamma: int, times: Times) -> float:
    """Of the sequential schedule by formula; 1 where gamma is 0."""
    tokens = speed.chain_tokens(beta, gamma)
    return speed.sequential(tokens, gamma, times.verify(1), times.verify(gamma + 1), times.draft)
