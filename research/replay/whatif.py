"""What-if predictions from forward times and acceptance, by formula and by simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from research import speed
from research.replay.predict import Times, geometric_lengths, parallel_run, sequential_run, speedup
from research.replay.virtual import Pattern, Run, Text
from vidspec.draft_length.costs import PassCosts
from vidspec.draft_length.window import AutoGamma, FixedGamma, Rounding, chain_tokens, settled_window

HIGHEST_GAMMA = 32
#: Tokens that are simulated altogether, in texts of the wanted length.
SIMULATED = 8_000


@dataclass(frozen=True)
class Estimate:
    """Estimate of one schedule: ``formula`` and ``predicted`` (simulated) decode speed-ups, simulated ``end_to_end``.

    ``run`` is one of the simulated texts, None where there is only a formula.
    """

    method: str
    gamma: int
    formula: float
    predicted: float | None
    end_to_end: float | None
    tokens_per_pass: float
    run: Run | None


def best_chain(beta: float, times: Times) -> int:
    """Return the chain length, at least 1, with the highest sequential speed-up by formula."""
    return speed.best_window(beta, times.verify, times.draft, highest=HIGHEST_GAMMA, lowest=1)[0]


def what_if(
    times: Times, beta: float, gamma: int | None, *, tokens: int = 512, seed: int = 0, rounding: Rounding = "down"
) -> list[Estimate]:
    """Estimate plain, sequential and parallel decoding of ``tokens`` tokens, accepted independently with ``beta``.

    ``gamma`` None: the best by formula for the sequential chain, the measured one for the parallel schedule.
    """
    chain = best_chain(beta, times) if gamma is None else gamma
    window = settled_window(times.verify, times.draft, rounding, HIGHEST_GAMMA) if gamma is None else gamma
    tp1, tp = times.verify(1), times.verify(window)
    # One after the other: without overlap the sequential schedule reads its prompts in turn.
    apart = replace(times, prefill=replace(times.prefill, overlap=False, signals=None))
    texts = [_text(beta, tokens, seed + i) for i in range(max(1, SIMULATED // tokens))]
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
            [_parallel(text, times, gamma, tokens, rounding) for text in texts],
            times,
        ),
        Estimate(
            "parallel, one shared device",
            window,
            speed.parallel(beta, window, tp1, tp, times.draft, shared=True),
            None,
            None,
            speed.round_tokens(beta, window),
            None,
        ),
    ]


def _text(beta: float, tokens: int, seed: int) -> Pattern:
    if beta == 1:
        return Pattern(lambda position: True)
    return Pattern.of_lengths(geometric_lengths(beta / (1 - beta), max(20, round(tokens * (1 - beta))), seed))


def _parallel(text: Text, times: Times, gamma: int | None, tokens: int, rounding: Rounding) -> Run:
    measured = PassCosts()
    auto = AutoGamma(measured, rounding=rounding, highest=HIGHEST_GAMMA)
    size = auto if gamma is None else FixedGamma(gamma)
    if times.prefill.target == 0:  # the draft needs some time for its start-up tokens
        times = replace(times, prefill=replace(times.prefill, target=times.verify(1)))
    return parallel_run(text, times, size, tokens, size.gamma, measured)


def _estimate(method: str, gamma: int, formula: float, runs: list[Run], times: Times) -> Estimate:
    passes = sum(len(run.rounds) - 1 for run in runs)
    return Estimate(
        method,
        gamma,
        formula,
        speedup(runs, times),
        speedup(runs, times, end_to_end=True) if times.prefill.target > 0 else None,
        sum(run.decoded for run in runs) / passes if passes else 0.0,
        runs[0],
    )


def chain_speedup(beta: float, gamma: int, times: Times) -> float:
    """Return the sequential schedule's speed-up by formula; 1 for gamma 0."""
    tokens = chain_tokens(beta, gamma)
    return speed.sequential(tokens, gamma, times.verify(1), times.verify(gamma + 1), times.draft)
