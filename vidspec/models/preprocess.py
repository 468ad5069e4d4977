"""From decoded frames to normalised pixels, as the checkpoints' own processors do it; torch only, no torchvision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

__all__ = ["MODES", "PixelRules", "channels_first", "halve", "normalised", "resized", "scaled"]

#: PIL's resampling numbers, which processor configs use.
MODES = {0: "nearest", 2: "bilinear", 3: "bicubic"}


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
            mode=MODES.get(config.get("resample", 3), "bicubic"),
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
    pixels = resized(channels_first(frames), rules.height, rules.width, rules.mode)
    return scaled(pixels, rules)


def channels_first(frames: NDArray[np.uint8]) -> torch.Tensor:
    """(T, 3, H, W) uint8 of frames (T, H, W, 3)."""
    return torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2)


def resized(pixels: torch.Tensor, height: int, width: int, mode: str) -> torch.Tensor:
    """Bytes (T, 3, H, W) as bytes (T, 3, height, width), whatever the ratio; antialiased."""
    if pixels.shape[-2:] == (height, width):
        return pixels
    antialias = {"antialias": True} if mode != "nearest" else {}
    return F.interpolate(pixels, size=(height, width), mode=mode, **antialias)


def scaled(pixels: torch.Tensor, rules: PixelRules) -> torch.Tensor:
    """Bytes (..., 3, H, W) as normalised float32."""
    mean = torch.tensor(rules.mean)[:, None, None]
    std = torch.tensor(rules.std)[:, None, None]
    return pixels.float().mul_(rules.scale).sub_(mean).div_(std)


def halve(features: torch.Tensor) -> torch.Tensor:
    """Average neighbouring features 2 x 2; of an odd side the last stands alone (TABED's pooled context, section 5).

    Args:
        features: (T, rows, columns, d).

    Returns:
        (T, ceil(rows / 2), ceil(columns / 2), d).
    """
    channels_first = features.permute(0, 3, 1, 2)
    pooled = F.avg_pool2d(channels_first, 2, ceil_mode=True, count_include_pad=False)
    return pooled.permute(0, 2, 3, 1)
