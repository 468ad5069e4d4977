"""Speed model: tokens and time of a round, and the speed-up over plain decoding. Pure formulas.

``beta`` is the probability that a drafted token is accepted, independently of all others; ``gamma`` the draft window;
``tp1`` and ``tp_window`` the times of a target pass over one token and over the window; ``tq`` that of a draft pass
over one token. All times in one unit. A speed-up is plain decoding's time per token, tp1, over the method's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from vidspec.draft_length.window import chain_tokens


def sequential(tokens: float, gamma: int, tp1: float, tp_window: float, tq: float, overhead: float = 0.0) -> float:
    """Return the speed-up of the sequential schedule: tokens * T_p(1) / (gamma * T_q + T_p(gamma+1) + overhead).

    ``tokens`` per target pass counts the correction or the bonus: ``chain_tokens``, or a measured tau + 1. (SpecVLM
    Eq. 3 and LVSpec Eq. 3 leave the 1 out, although their tau does not contain it.) For a tree ``gamma`` is its
    depth. ``tp_window`` is the pass over the window and the token before it.
    """
    return tokens * _time(tp1) / (gamma * tq + _time(tp_window) + overhead)


def best_window(
    beta: float,
    verify: Callable[[int], float],
    tq: float,
    overhead: float = 0.0,
    highest: int = 16,
    lowest: int = 0,
) -> tuple[int, float]:
    """Return the window gamma in lowest..highest with the most tokens per second, and that rate; 0 is plain decoding.

    A round yields (1 - beta^(gamma+1)) / (1 - beta) tokens and lasts gamma * T_q + T_p(gamma+1) + overhead.

    Args:
        beta: probability that a drafted token is accepted.
        verify: seconds of a target pass by its rows.
        tq: seconds of a draft pass on one token.
        overhead: further seconds of a round with a draft.
        highest, lowest: bounds of the window.
    """
    rates = {
        gamma: chain_tokens(beta, gamma) / (gamma * tq + verify(gamma + 1) + (overhead if gamma else 0.0))
        for gamma in range(lowest, highest + 1)
    }
    best = max(rates, key=lambda gamma: rates[gamma])
    return best, rates[best]


def run_rounds(beta: float, gamma: int) -> float:
    """Return the expected rounds between two rejections under the parallel schedule: 1 + beta / (1 - beta^gamma).

    One pre-verify, which checks one token, and, if it passes, rounds of gamma tokens until one of them fails.
    """
    return math.inf if _share(beta) == 1 else 1 + beta / (1 - beta**gamma)


def round_tokens(beta: float, gamma: int) -> float:
    """Return the expected tokens of a round under the parallel schedule: 1 / (1 - beta) over :func:`run_rounds`."""
    return float(gamma) if _share(beta) == 1 else 1 / (1 - beta) / run_rounds(beta, gamma)


def parallel(beta: float, gamma: int, tp1: float, tp_window: float, tq: float, *, shared: bool = False) -> float:
    """Return the speed-up of the parallel schedule, exact by renewal at the rejections:

        [1 / (1 - beta)] / [1 + beta / (1 - beta^gamma)] * T_p(1) / max(gamma * T_q, T_p(gamma))

    Between two rejections lie 1/(1 - beta) tokens, correction included, and ``run_rounds`` rounds. ``shared``: both
    models on one memory-bound device, where a round costs the sum instead of the maximum.

    ParallelVLM prints another formula (Theorem 6): its statement has 1 + tau * gamma for the 1 + tau^gamma of its
    proof. At the printed tau of 0.41 these give 1.63x and 0.35x, where 3.43x is claimed; this formula gives 3.50x.
    """
    round_ = gamma * tq + tp_window if shared else max(gamma * tq, tp_window)
    return round_tokens(beta, gamma) * _time(tp1) / _time(round_)


def parallel_with_abort(beta: float, gamma: int, tp1: float, tp_window: float, tq: float) -> float:
    """Return the speed-up of :func:`parallel` with this package's rounds.

    A pre-verify is a pass over one token, and a rejection ends the round at once (HIPPO 5.2), so that only accepted
    rounds wait for the draft's whole window. A rejected round lasts until the draft has finished its current pass,
    because the next window starts then. This slightly overestimates the time if the next round is rejected too, which
    needs no window.
    """
    if _share(beta) == 1:
        return parallel(beta, gamma, tp1, tp_window, tq)

    def rejected(tp: float) -> float:
        return max(tp, min(gamma, math.ceil(tp / tq - 1e-9)) * tq)

    passed = 1 / (1 - beta**gamma) - 1  # accepted post-verify rounds before a rejected one
    wait = gamma * tq
    post = passed * max(_time(tp_window), wait) + rejected(tp_window)
    cycle = (1 - beta) * rejected(_time(tp1)) + beta * (max(tp1, wait) + post)
    return tp1 / (1 - beta) / cycle


def beta_of_run_length(length: float) -> float:
    """Return beta for a mean ``run_length`` M, the accepted tokens between two rejections: M / (1 + M)."""
    if length < 0:
        raise ValueError(f"a run length cannot be {length}")
    return length / (1 + length)


def beta_of_tokens_per_pass(tokens: float, gamma: int) -> float:
    """Return beta for which a chain of gamma gives ``tokens`` per pass: the inverse of ``chain_tokens``, by bisection.

    Raises:
        ValueError: not between 1 and gamma + 1.
    """
    if not 1 <= tokens <= gamma + 1:
        raise ValueError(f"a chain of {gamma} cannot give {tokens} tokens per pass")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chain_tokens(middle, gamma) < tokens else (low, middle)
    return (low + high) / 2


def _share(value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"a probability cannot be {value}")
    return value


def _time(value: float) -> float:
    if not value > 0:
        raise ValueError(f"a forward time must be positive, not {value}")
    return value
