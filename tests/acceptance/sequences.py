"""Whole texts of a table: their exact probabilities, and whether drawn ones could come from them (chi-square)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import torch

from tests.decoding.toys import Prefix, Table
from vidspec.decoding.limits import StoppingRules
from vidspec.engine.sampling import Sampling

#: The third test of docs/research/metrics.md, "Losslessness".
SIGNIFICANCE = 1e-4


def reference_distribution(logits: torch.Tensor, sampling: Sampling) -> list[float]:
    """Temperature, top-k, of these the smallest set that reaches top-p, of these min-p; written out in Python."""
    weights = [math.exp(x / sampling.temperature) for x in logits.double().tolist()]
    order = sorted(range(len(weights)), key=lambda token: -weights[token])[: sampling.top_k or None]
    whole, mass, kept = sum(weights[token] for token in order), 0.0, list[int]()
    for token in order:
        kept.append(token)
        mass += weights[token]
        if mass >= sampling.top_p * whole:
            break
    kept = [token for token in kept if weights[token] >= sampling.min_p * weights[order[0]]]
    mass = sum(weights[token] for token in kept)
    return [weight / mass if token in kept else 0.0 for token, weight in enumerate(weights)]


def exact_distribution(table: Table, sampling: Sampling, limits: StoppingRules) -> dict[Prefix, float]:
    """The probability of every text."""
    done: dict[Prefix, float] = {}
    open_: list[tuple[Prefix, float]] = [((), 1.0)]
    while open_:
        prefix, mass = open_.pop()
        if len(prefix) == limits.max_new_tokens or (prefix and prefix[-1] in limits.eos):
            done[prefix] = mass
            continue
        for token, p in enumerate(reference_distribution(table(prefix), sampling)):
            if p > 0:
                open_.append(((*prefix, token), mass * p))
    assert abs(sum(done.values()) - 1) < 1e-9
    return done


def p_value(texts: Iterable[Prefix], exact: dict[Prefix, float]) -> float:
    """Pearson's test of drawn texts against their exact distribution; rare texts are pooled into one cell.

    A text that cannot occur gives 0.
    """
    from scipy.stats import chi2  # it takes seconds

    seen = Counter(texts)
    total = sum(seen.values())
    if any(text not in exact for text in seen):
        return 0.0
    cells, rare = [], [0.0, 0.0]
    for text, p in exact.items():
        if p * total >= 5:
            cells.append((float(seen[text]), p * total))
        else:
            rare = [rare[0] + seen[text], rare[1] + p * total]
    if rare[1] > 0:
        cells.append((rare[0], max(rare[1], 1.0)))
    statistic = sum((observed - expected) ** 2 / expected for observed, expected in cells)
    return float(chi2.sf(statistic, len(cells) - 1))
