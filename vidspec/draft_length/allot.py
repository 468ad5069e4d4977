"""Allotment of draft windows to clips for the most tokens per second, given pass times. Pure.

The machine's cost and the clips' acceptance are arguments; :mod:`vidspec.draft_length.pace` measures both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from operator import sub

from vidspec.draft_length.passes import TimeCurve
from vidspec.draft_length.speed import chain_tokens

__all__ = ["allot_windows", "round_seconds", "tokens_per_second"]


def allot_windows(
    betas: Sequence[float],
    draft: Sequence[float],
    verify: TimeCurve,
    highest: int = 16,
    rate: float = 0.0,
) -> tuple[list[int], float]:
    """Return the windows with the most tokens per second, and that rate.

    For a guess of the rate (Dinkelbach) and the price of a row, each draft pass takes the clips that gain more than
    they cost, the highest acceptance first: the clips of pass g gain the sum of beta_i^g. This is exact if all rows
    cost the same. Otherwise it tries each price of the curve, windows that end at its kinks, and windows of equal
    length.

    Args:
        betas: acceptance rate of each clip.
        draft: seconds of a draft pass by number of clips, from 0.
        verify: seconds of the target's pass by rows, with all clips in it.
        highest: the longest window.
        rate: a first guess of the rate.
    """
    clips = len(betas)
    order = sorted(range(clips), key=lambda i: -betas[i])
    sums = _beta_sums([betas[i] for i in order], highest)
    best: list[int] = []  # clips in the first, second, ... draft pass
    fastest = clips / verify(clips)
    ends = [x - clips for x in verify.kinks]

    def reached(passes: list[int]) -> float:
        nonlocal fastest, best
        tokens, seconds, rows, most = float(clips), 0.0, clips, 0.0
        for g, (gains, n) in enumerate(zip(sums, passes, strict=False), 1):
            tokens += gains[n]
            seconds += draft[n]
            rows += n
            most = max(most, found := tokens / (seconds + verify(rows)))
            if found > fastest:
                fastest, best = found, passes[:g]
        return most

    reached([clips] * highest)
    guess = max(rate, fastest)
    for _ in range(8):
        found = []
        for price in verify.prices:
            passes = _profitable_clips(sums, [guess * (seconds + price * n) for n, seconds in enumerate(draft)])
            found.append((reached(passes), passes))
        at = max(range(len(found)), key=lambda k: found[k][0])
        for (_, wider), (_, narrower) in pairwise(found[max(0, at - 1) : at + 2]):
            for passes in _interpolated_windows(sums, narrower, wider, ends):
                reached(passes)
        if fastest - guess <= 0.01 * guess:
            break
        guess = fastest
    gammas = [0] * clips
    for place, i in enumerate(order):
        gammas[i] = sum(n > place for n in best)
    return gammas, fastest


def _profitable_clips(sums: list[list[float]], costs: list[float]) -> list[int]:
    """Return the most profitable number of clips in each draft pass; 0 in all passes after the first with 0."""
    costs[0] = 0.0
    passes = []
    for gains in sums:
        worth = list(map(sub, gains, costs))
        most = max(worth)
        if most <= 0:
            break
        passes.append(worth.index(most))
    return passes


def _interpolated_windows(
    sums: list[list[float]], passes: list[int], wider: list[int], rows: list[float]
) -> list[list[int]]:
    """Return windows between ``passes`` and ``wider`` with about the given drafted rows, rounded both ways."""
    least, most = sum(passes), sum(wider)
    ends = sorted({end for x in rows if least < x < most for end in (math.floor(x), math.ceil(x))} - {least, most})
    if not ends:
        return []
    now = passes + [0] * (len(wider) - len(passes))
    steps = [(sums[g][n] - sums[g][n + 1], g, n) for g, m in enumerate(now) for n in range(m, wider[g])]
    steps.sort()
    made = []
    for start, end in pairwise([least, *ends]):
        for _, g, _ in steps[start - least : end - least]:
            now[g] += 1
        made.append([n for n in now if n])
    return made


def _beta_sums(betas: Sequence[float], highest: int) -> list[list[float]]:
    """Return, for each g from 1 and each n, the sum of beta^g over the first n clips."""
    powers = list(betas)
    sums = []
    for _ in range(highest):
        sums.append(list(accumulate(powers, initial=0.0)))
        powers = [power * beta for power, beta in zip(powers, betas, strict=True)]
    return sums


def round_seconds(gammas: Sequence[int], draft: Sequence[float], verify: Callable[[float], float]) -> float:
    """Return the seconds of a round with these windows."""
    passes = (sum(gamma >= g for gamma in gammas) for g in range(1, max(gammas) + 1))
    return sum(draft[n] for n in passes) + verify(len(gammas) + sum(gammas))


def tokens_per_second(
    betas: Sequence[float], gammas: Sequence[int], draft: Sequence[float], verify: Callable[[float], float]
) -> float:
    """Return the tokens per second with these windows."""
    tokens = sum(map(chain_tokens, betas, gammas))
    return tokens / round_seconds(gammas, draft, verify)
