"""Visual tokens to prune, and slow arithmetic on single vectors to compare with."""

import math

import torch

from vidspec.models.base import VisualTokens
from vidspec.pruning.base import Signals


def visual_tokens(frames, rows, columns, hidden=6, newline=True, seed=0, features=None):
    """``frames`` frames of ``rows`` x ``columns`` tokens behind four rows of text, and LLaVA-OneVision's newline."""
    n, place = frames * rows * columns + newline, torch.arange(frames * rows * columns + newline)
    last = (place == n - 1) & newline
    if features is None:
        features = torch.randn(n, hidden, generator=torch.Generator().manual_seed(seed))
    return VisualTokens(
        index=place + 4,
        frame=(place // (rows * columns)).clamp(max=frames - 1),
        row=(place % (rows * columns) // columns).masked_fill(last, -1),
        column=(place % columns).masked_fill(last, -1),
        required=last,
        features=features,
    )


def irregular_tokens(frames, rows, columns, seed=0):
    """Frames whose rows end in separators, and of which every other one lacks its last column."""
    places = [
        (frame, row, column)
        for frame in range(frames)
        for row in range(rows)
        for column in (*range(columns - (frame % 2 if columns > 1 else 0)), -1)
    ]
    frame, row, column = (torch.tensor(axis) for axis in zip(*places, strict=True))
    separator = column < 0
    features = torch.randn(len(places), 6, generator=torch.Generator().manual_seed(seed))
    row = row.masked_fill(separator, -1)
    return VisualTokens(torch.arange(len(places)) + 4, frame, row, column, separator, features)


def random_signals(visual, needs=(), seed=0, text=7):
    """Random signals for ``visual`` and so many rows of text behind it: attention, and of the others those needed."""
    rng, n, d = torch.Generator().manual_seed(seed + 100), len(visual), visual.features.shape[1]
    rows = int(visual.index[-1]) + 1 + text
    return Signals(
        visual,
        torch.rand(n, generator=rng),
        seed,
        text=torch.arange(rows - text, rows),
        hidden={at: distinct_rows(rows, d, seed + at, visual.features.dtype) for at in _at(needs, "hidden")},
        block_attention={at: torch.rand(n, generator=rng) for at in _at(needs, "attention")},
    )


def _at(needs, kind):
    return sorted(int(need.partition("@")[2]) for need in needs if need.startswith(f"{kind}@"))


def distinct_rows(rows, hidden, seed=0, dtype=torch.bfloat16):
    """(rows, hidden) random numbers in the memory of one row and one column: each row is the one before, shifted."""
    pool = torch.randn(rows + hidden, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return pool.as_strided((rows, hidden), (1, 1))


def cos(a, b):
    """The cosine of two vectors in float64."""
    a, b = a.double(), b.double()
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def best(scores, visual, alpha):
    """The required tokens and the best others, one at a time; of equal scores the earlier."""
    n = len(visual)
    kept = [i for i in range(n) if visual.required[i]]
    others = sorted((i for i in range(n) if not visual.required[i]), key=lambda i: -float(scores[i]))
    return sorted([*kept, *others][: max(1, round((1 - alpha) * n))])
