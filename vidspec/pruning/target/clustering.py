"""Density-peak clustering of dropped tokens, for SparseVLM: which token is the centre of which others."""

from __future__ import annotations

import torch

__all__ = ["clusters"]


def clusters(states: torch.Tensor, count: int) -> torch.Tensor:
    """Assign tokens to ``count`` of them, by density peaks over nearest neighbours (SparseVLM, recycling).

    Distances are Euclidean over sqrt(d). A token's density is exp(-mean squared distance to its ``count`` nearest,
    itself included), its separation the distance to the nearest token that is denser (the largest distance of all if
    none is). The centres are those with the largest product of both, of equal ones the earlier; the others join the
    nearest centre.

    **D**: the released code adds noise of 1e-6 to the densities so that none are equal; here equal ones stay equal.

    Args:
        states: (m, d), computed in float32.
        count: from 1 to m.

    Returns:
        (m,) of each token its centre; a centre is its own.
    """
    points = states.float()
    distance = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist") / points.shape[1] ** 0.5
    density = (-distance.topk(count, largest=False).values.square().mean(dim=-1)).exp()
    denser = density[None, :] > density[:, None]
    separation = distance.masked_fill(~denser, float(distance.max())).amin(dim=-1)
    centres = (separation * density).sort(descending=True, stable=True).indices[:count]
    nearest: torch.Tensor = centres[distance[:, centres].argmin(dim=-1)]
    nearest[centres] = centres
    return nearest
