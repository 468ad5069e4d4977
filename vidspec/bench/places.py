"""Who is faster than whom, as far as clips tell: a difference smaller than its spread is no order. No measuring."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from vidspec.bench.compare import FEWEST, interval

__all__ = ["differ", "places"]

LEVEL = 0.95


def differ(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether two methods' rates by clip differ by more than they vary.

    The ratios on the clips that both have must lie to one side of 1: their bootstrap interval, or of fewer than
    :data:`~vidspec.bench.compare.FEWEST` clips, all of them, which takes at least two.
    """
    logs = np.array([math.log(one[clip] / other[clip]) for clip in one if other.get(clip) and one[clip]])
    if len(logs) < 2:
        return False
    if len(logs) < FEWEST:
        return bool(logs.min() > 0 or logs.max() < 0)
    low, high = interval(logs, LEVEL)
    return not low <= 1 <= high


def places(rates: Mapping[str, Mapping[str, float]]) -> dict[str, int]:
    """The place of each method, 1 the fastest, by its rate (higher is faster) on each clip.

    In the order of geometric means, a method shares the place of the one before unless it differs from the first that
    has this place; the next place counts all before it.
    """
    order = sorted(rates, key=lambda name: (-_mean(rates[name]), name))
    found: dict[str, int] = {}
    first = ""
    for number, name in enumerate(order, 1):
        if not found or differ(rates[first], rates[name]):
            first = name
            found[name] = number
        else:
            found[name] = found[first]
    return found


def _mean(rates: Mapping[str, float]) -> float:
    """Geometric; of nothing, or with a clip without a rate, 0."""
    if not rates or min(rates.values()) <= 0:
        return 0.0
    return math.exp(sum(map(math.log, rates.values())) / len(rates))
