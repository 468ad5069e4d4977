"""TABED's rules for weights, written out in loops over Python floats; for comparison."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

Row = Sequence[float]


def literal_kl(p: Row, q: Row) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def literal_tvd(p: Row, q: Row) -> float:
    return sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


DIVERGENCES = {"kl": literal_kl, "tvd": literal_tvd}


def literal_mean(weights: Row, rows: Sequence[Row]) -> list[float]:
    return [sum(w * row[i] for w, row in zip(weights, rows, strict=True)) for i in range(len(rows[0]))]


def best(row: Row) -> int:
    return max(range(len(row)), key=lambda i: row[i])


def literal_weights(
    rule: str, positions: Sequence[tuple[Row, Sequence[Row], int]], contexts: int, divergence: str, history: int | None
) -> list[float]:
    """The weights after verified ``positions``, each the target's p, every context's q and the token emitted."""
    seen = list(positions) if history is None else list(positions)[-history:]
    if rule == "equal" or not seen:
        return [1 / contexts] * contexts
    distance = DIVERGENCES[divergence]
    if rule == "grid":
        winner, best_score = None, None
        for tenths in itertools.product(range(11), repeat=contexts):
            if sum(tenths) != 10:
                continue
            weights = [tenth / 10 for tenth in tenths]
            matches, error = 0, 0.0
            for p, rows, emitted in seen:
                q = literal_mean(weights, rows)
                matches += best(q) == emitted
                error += distance(p, q)
            if best_score is None or (-matches, error) < best_score:
                winner, best_score = weights, (-matches, error)
        return winner
    errors = [sum(distance(p, rows[i]) for p, rows, _ in seen) for i in range(contexts)]
    if rule == "softmax":
        top = max(1 / e for e in errors)
        scores = [math.exp(1 / e - top) for e in errors]
    else:
        scores = [1 / e for e in errors]
    return [score / sum(scores) for score in scores]
