"""Codes that stand in for visual features while the halves of a built-in model are trained separately.

Every property of the world has a fixed random direction; a patch's code is the sum of the directions of its content,
a visual token's code the mean over its patches. The vision tower learns to produce these codes, the language model
learns to read them, side by side; neither needs the other until the joint stage.
"""

from __future__ import annotations

import numpy as np
import torch

from research.training.architecture import Grid
from research.world.drawing import Floats, Times, coverage
from research.world.scene import BACKGROUNDS, COLOURS, PATTERNS, SIZES, Scene
from vidspec.embedded.prompts import SHAPES

#: Directions of place per axis; a grid with another number of cells blends the two nearest.
_PLACES = 8
_NAMES = (
    *(f"colour:{name}" for name in COLOURS),
    *(f"shape:{name}" for name in SHAPES),
    *(f"size:{name}" for name in SIZES),
    *(f"background:{name}" for name in BACKGROUNDS),
    *(f"pattern:{name}" for name in PATTERNS),
    *(f"x:{k}" for k in range(_PLACES)),
    *(f"y:{k}" for k in range(_PLACES)),
)
_INDEX = {name: k for k, name in enumerate(_NAMES)}
#: Objects are small and rare: their directions are longer than those of place and background.
_LONG = 2.0


def shares(scene: Scene, times: Times, grid: Grid) -> Floats:
    """Share of each thing in each patch's code, (things, T, patch rows, patch columns) in [0, 1].

    A thing counts in full from a quarter of the patch on; where several overlap, the shares sum to at most 1.
    """
    share = np.clip(coverage(scene, times, 2 * grid.rows, 2 * grid.columns) / 0.25, 0.0, 1.0)
    return np.asarray(share / np.maximum(share.sum(axis=0, keepdims=True), 1.0), dtype=np.float32)


def pool_shares(share: Floats, grid: Grid) -> Floats:
    """Mean over each visual token's patches: (things, T, 2 rows, 2 columns) to (things, T / frames, rows, columns)."""
    shape = (len(share), -1, grid.frames, grid.rows, 2, grid.columns, 2)
    return np.asarray(share.reshape(shape).mean(axis=(2, 4, 6)), dtype=np.float32)


def pool(patches: torch.Tensor) -> torch.Tensor:
    """Mean over 2 x 2 patches: (T, 2 rows, 2 columns, hidden) to (T, rows, columns, hidden)."""
    t, rows, columns, hidden = patches.shape
    return patches.reshape(t, rows // 2, 2, columns // 2, 2, hidden).mean(dim=(2, 4))


class Codes:
    """Fixed orthonormal directions in a model's hidden space.

    Args:
        hidden: width of the language model; at least the number of properties (45).
        seed: of the random rotation.
    """

    def __init__(self, hidden: int, seed: int = 11):
        generator = torch.Generator().manual_seed(seed)
        square = torch.randn(hidden, hidden, generator=generator)
        self.directions = torch.linalg.qr(square)[0][: len(_NAMES)].contiguous()

    def places(self, rows: int, columns: int) -> torch.Tensor:
        """Return the position codes of the cells of a grid of any size, (rows, columns, hidden)."""
        x, y = (self._axis(name, cells) for name, cells in (("x", columns), ("y", rows)))
        return y[:, None] + x[None, :]

    def _axis(self, name: str, cells: int) -> torch.Tensor:
        """(cells, hidden): the two directions nearest to a cell's centre, blended linearly."""
        centre = ((torch.arange(cells) + 0.5) / cells * _PLACES - 0.5).clamp(0, _PLACES - 1)
        low = centre.long().clamp(max=_PLACES - 2)
        part = (centre - low)[:, None]
        first = self.directions[_INDEX[f"{name}:0"] :][:_PLACES]
        return torch.lerp(first[low], first[low + 1], part)

    def of(self, scene: Scene, share: Floats, places: torch.Tensor) -> torch.Tensor:
        """Return the codes of cells (patches or visual tokens).

        Args:
            scene: the scene to encode.
            share: (things, T, rows, columns) of each cell, as :func:`shares` or :func:`pool_shares` gives it.
            places: (rows, columns, hidden) of :meth:`places`, pooled like the shares.

        Returns:
            (T, rows, columns, hidden) float32.
        """
        part = torch.from_numpy(share)
        named = [
            self._sum(f"colour:{thing.colour}", f"shape:{thing.shape}", f"size:{thing.size}") for thing in scene.things
        ]
        backdrop = self._sum(f"background:{scene.background}", f"pattern:{scene.pattern}")
        codes: torch.Tensor = torch.einsum("otyx,od->tyxd", part, _LONG * torch.stack(named))
        return codes + (1.0 - part.sum(dim=0))[..., None] * backdrop + places

    def _sum(self, *names: str) -> torch.Tensor:
        return torch.stack([self.directions[_INDEX[name]] for name in names]).sum(dim=0)

    def patches(self, scene: Scene, share: Floats) -> torch.Tensor:
        """Return the codes of all patches, (T, 2 rows, 2 columns, hidden) float32."""
        return self.of(scene, share, self.places(*share.shape[2:]))

    def tokens(self, scene: Scene, share: Floats, grid: Grid) -> torch.Tensor:
        """Return the codes of all visual tokens, (T / frames, rows, columns, hidden) float32, from patches' shares."""
        return self.of(scene, pool_shares(share, grid), pool(self.places(*share.shape[2:])[None])[0])
