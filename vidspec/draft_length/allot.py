"""Allotment of draft windows to clips for the most tokens per second, given pass times. Pure.

The machine's cost and the clips' acceptance are arguments; :mod:`vidspec.draft_length.pace` measures both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import neg

from vidspec.draft_length.speed import chain_tokens

__all__ = ["allot_windows", "round_seconds", "tokens_per_second"]

#: Least acceptances that are tried.
TRIED = 24
#: Share of the rate with fewer passes of the draft below which no further one is tried.
WORSE = 0.8


def allot_windows(
    betas: Sequence[float], draft: Sequence[float], verify: Callable[[float], float], highest: int = 16
) -> tuple[list[int], float]:
    """Return the windows with the most tokens per second, and that rate.

    Where all rows cost the same, the best windows have two numbers: the g-th pass of the draft takes the clips whose
    beta^g is at least the one, up to a last pass. All last passes are tried, and all least acceptances, or
    :data:`TRIED` of them, evenly apart by the rows that they draft.

    Args:
        betas: acceptance rate of each clip.
        draft: seconds of a draft pass by number of clips, from 0.
        verify: seconds of the target's pass by rows, with all clips in it.
        highest: the longest window.
    """
    clips = len(betas)
    order = sorted(range(clips), key=lambda clip: -betas[clip])
    powers = [[betas[clip] ** g for clip in order] for g in range(1, highest + 1)]
    gains = [list(accumulate(row, initial=0.0)) for row in powers]
    leasts = sorted({power for row in powers for power in row if power > 0})
    tried = leasts[:: 1 + len(leasts) // TRIED] if min(betas) < max(betas) else leasts[:1]
    best: list[int] = []  # clips in the first, second, ... draft pass
    fastest = clips / verify(clips)
    for least in reversed(tried):  # the fewest rows first
        tokens, seconds, rows, peak = float(clips), 0.0, clips, 0.0
        passes: list[int] = []
        for row, gain in zip(powers, gains, strict=True):
            if row[0] < least:
                break
            count = bisect_right(row, -least, key=neg)
            passes.append(count)
            tokens, seconds, rows = tokens + gain[count], seconds + draft[count], rows + count
            rate = tokens / (seconds + verify(rows))
            if rate > fastest:
                fastest, best = rate, passes.copy()
            if rate < WORSE * peak:
                break
            peak = max(peak, rate)
    windows = [0] * clips
    for place, clip in enumerate(order):
        windows[clip] = sum(count > place for count in best)
    return windows, fastest


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
