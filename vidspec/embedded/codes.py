"""The interface between the halves of a built-in model while they are trained apart.

Every property of the world has a fixed random direction; a patch's code is the sum of the directions of what it shows.
The vision tower learns to produce these codes, the language model learns to read them, side by side; neither needs the
other until the joint stage.
"""

from __future__ import annotations

import numpy as np
import torch

from vidspec.embedded.architecture import CELLS
from vidspec.embedded.drawing import Floats, Times, coverage
from vidspec.embedded.world import BACKGROUNDS, COLOURS, PATTERNS, SHAPES, SIZES, Scene

__all__ = ["Codes"]

_NAMES = (
    *(f"colour:{name}" for name in COLOURS),
    *(f"shape:{name}" for name in SHAPES),
    *(f"size:{name}" for name in SIZES),
    *(f"background:{name}" for name in BACKGROUNDS),
    *(f"pattern:{name}" for name in PATTERNS),
    *(f"x:{k}" for k in range(CELLS)),
    *(f"y:{k}" for k in range(CELLS)),
)
_INDEX = {name: k for k, name in enumerate(_NAMES)}
#: Objects are small and rare: their directions are longer than those of place and background.
_LONG = 2.0


class Codes:
    """Fixed orthonormal directions in a model's hidden space.

    Args:
        hidden: width of the language model; at least the number of properties (45).
        seed: of the random rotation.
    """

    def __init__(self, hidden: int, seed: int = 11):
        generator = torch.Generator().manual_seed(seed)
        square = torch.randn(hidden, hidden, generator=generator)
        directions = torch.linalg.qr(square)[0][: len(_NAMES)].contiguous()
        self.directions = directions
        self.places = torch.zeros(CELLS, CELLS, hidden)
        for row in range(CELLS):
            for column in range(CELLS):
                self.places[row, column] = directions[_INDEX[f"x:{column}"]] + directions[_INDEX[f"y:{row}"]]

    def weights(self, scene: Scene, times: Times) -> Floats:
        """Share of each thing in each patch's code, (things, T, CELLS, CELLS) in [0, 1]: full from 25% coverage on."""
        share = np.clip(coverage(scene, times, CELLS) / 0.25, 0.0, 1.0)
        return np.asarray(share / np.maximum(share.sum(axis=0, keepdims=True), 1.0), dtype=np.float32)

    def patches(self, scene: Scene, times: Times, weights: Floats | None = None) -> torch.Tensor:
        """Codes of all patches, (T, CELLS, CELLS, hidden) float32."""
        share = torch.from_numpy(self.weights(scene, times) if weights is None else weights)
        things = torch.stack(
            [
                _LONG
                * (
                    self.directions[_INDEX[f"colour:{thing.colour}"]]
                    + self.directions[_INDEX[f"shape:{thing.shape}"]]
                    + self.directions[_INDEX[f"size:{thing.size}"]]
                )
                for thing in scene.things
            ]
        )
        backdrop = (
            self.directions[_INDEX[f"background:{scene.background}"]]
            + self.directions[_INDEX[f"pattern:{scene.pattern}"]]
        )
        empty = 1.0 - share.sum(dim=0)
        codes: torch.Tensor = torch.einsum("otyx,od->tyxd", share, things)
        codes = codes + empty[..., None] * backdrop + self.places[None]
        return codes

    def tokens(self, patches: torch.Tensor) -> torch.Tensor:
        """Pool patch codes (T, CELLS, CELLS, hidden) 2 x 2 into visual tokens, (T * (CELLS / 2) ** 2, hidden)."""
        t, side, _, hidden = patches.shape
        pooled = patches.reshape(t, side // 2, 2, side // 2, 2, hidden).mean(dim=(2, 4))
        return pooled.reshape(-1, hidden)
