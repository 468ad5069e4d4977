"""Every 1/(1-alpha)-th visual token of each frame in raster order (SD-Uniform in SpecVLM 4.4).

**D**: the spacing begins anew in each frame ("token positions within the spatial layout"); the released code spaces
them over the whole video. The budget is exact, so frames differ by at most one token; those with one more are evenly
spaced over the video. Required tokens, such as separators, count towards the budget but not towards their frame's
share. A frame with fewer tokens than its share keeps them all, and the others share the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vidspec.pruning.base import Pruner, Signals, evenly_spaced, pruners, split

if TYPE_CHECKING:
    import torch


@pruners.register("uniform")
class UniformPruner(Pruner):
    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        parts = split(signals.visual, alpha)
        frame = signals.visual.frame[parts.free]
        sizes = frame.bincount(minlength=signals.visual.frames)
        shares = sizes.new_tensor(_shares(sizes.tolist(), parts.wanted))
        return parts.kept(parts.free[_keep_mask(frame, sizes, shares)])


def _shares(sizes: Sequence[int], wanted: int) -> list[int]:
    """Return the tokens to keep of each frame, ``wanted`` in total, equal up to one where frames hold enough."""
    shares = [0] * len(sizes)
    while wanted > 0:
        open_frames = [at for at, size in enumerate(sizes) if shares[at] < size]
        each = wanted // len(open_frames)
        if not each:
            for place in evenly_spaced(len(open_frames), wanted).tolist():
                shares[open_frames[place]] += 1
            break
        for at in open_frames:
            more = min(each, sizes[at] - shares[at])
            shares[at] += more
            wanted -= more
    return shares


def _keep_mask(frame: torch.Tensor, sizes: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Return the (n,) mask of tokens to keep: ``evenly_spaced`` in each frame, for all frames at once.

    A token of rank r among its frame's N is kept if one of the positions ``(2 j + 1) N // (2 K)`` equals r;
    ``(2 K r + N - 1) // (2 N)`` of these positions lie below r.

    Args:
        frame: (n,) frame of each token.
        sizes, shares: N and K of each frame.
    """
    import torch

    order = frame.argsort(stable=True)
    first = sizes.cumsum(0) - sizes
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - first[frame[order]]
    n, k = sizes[frame], shares[frame]

    def below(rank: torch.Tensor) -> torch.Tensor:
        return (2 * k * rank + n - 1) // (2 * n)

    return below(rank + 1) > below(rank)
