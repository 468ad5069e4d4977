"""Visual tokens to prune, and slow arithmetic on single vectors to compare with."""

import math

import torch

from vidspec.models.base import VisualTokens


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
