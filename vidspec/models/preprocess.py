"""From decoded frames to normalised pixels, as the checkpoints' own processors do it; torch only, no torchvision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

__all__ = ["PixelRules", "normalised"]

#: PIL's resampling numbers, which processor configs use.
_MODES = {0: "nearest", 2: "bilinear", 3: "bicubic"}


@dataclass(frozen=True)
class PixelRules:
    """How a checkpoint wants its frames.

    Attributes:
        height, width: every frame is resized to, ratio ignored (LLaVA-OneVision shows whole frames).
        mean, std: per channel, of values in [0, 1].
        mode: interpolation.
        scale: what bytes are multiplied with.
    """

    height: int
    width: int
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    mode: str = "bicubic"
    scale: float = 1 / 255

    @classmethod
    def from_config(cls, config: Mapping[str, Any], image_size: int) -> PixelRules:
        """Read a processor config; missing keys fall back to the vision tower's image size and SigLIP's values."""
        size = config.get("size") or {}
        edge = size.get("shortest_edge", image_size)
        return cls(
            height=int(size.get("height", edge)),
            width=int(size.get("width", edge)),
            mean=tuple(config.get("image_mean") or (0.5, 0.5, 0.5)),
            std=tuple(config.get("image_std") or (0.5, 0.5, 0.5)),
            mode=_MODES.get(config.get("resample", 3), "bicubic"),
            scale=float(config.get("rescale_factor", 1 / 255)),
        )


def normalised(frames: NDArray[np.uint8], rules: PixelRules) -> torch.Tensor:
    """Resize and normalise frames.

    Resizing runs on bytes with antialiasing, which is what torchvision does, so that results agree to the last bit of
    the resized byte.

    Args:
        frames: (T, H, W, 3) uint8 RGB.
        rules: size, interpolation and normalisation.

    Returns:
        (T, 3, height, width) float32.
    """
    pixels = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2)
    if pixels.shape[-2:] != (rules.height, rules.width):
        antialias = rules.mode != "nearest"
        pixels = F.interpolate(
            pixels, size=(rules.height, rules.width), mode=rules.mode, **({"antialias": True} if antialias else {})
        )
    mean = torch.tensor(rules.mean)[:, None, None]
    std = torch.tensor(rules.std)[:, None, None]
    return (pixels.float() * rules.scale - mean) / std
