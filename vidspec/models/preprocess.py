"""From decoded frames to normalised pixels, as the checkpoints' own processors do it; torch only, no torchvision.

For a CUDA device the frames' bytes are copied there and everything else happens there. Resized bytes are those of the
CPU but for fewer than one in a hundred, which differ by one, rarely two, of 255: the CPU rounds the filter's weights
too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

__all__ = ["CPU", "MODES", "PixelRules", "channels_first", "halve", "normalised", "resized", "scaled"]

#: Whether torch has Lanczos' filter (for bytes on a CPU); the library's processors take bicubic where it has not.
_LANCZOS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 12)
#: PIL's resampling numbers, which processor configs use.
MODES = {0: "nearest", 1: "lanczos" if _LANCZOS else "bicubic", 2: "bilinear", 3: "bicubic"}
CPU = torch.device("cpu")
#: Frames that are resized at once where that takes floats.
_AT_ONCE = 8


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


def normalised(frames: NDArray[np.uint8], rules: PixelRules, device: torch.device = CPU) -> torch.Tensor:
    """Resize and normalise frames.

    Resizing runs on bytes with antialiasing, which is what torchvision does, so that results agree to the last bit of
    the resized byte.

    Args:
        frames: (T, H, W, 3) uint8 RGB.
        rules: size, interpolation and normalisation.
        device: of the model.

    Returns:
        (T, 3, height, width) float32, where :func:`channels_first` puts the frames.
    """
    pixels = resized(channels_first(frames, device), rules.height, rules.width, rules.mode)
    return scaled(pixels, rules)


def channels_first(frames: NDArray[np.uint8], device: torch.device = CPU) -> torch.Tensor:
    """(T, 3, H, W) uint8 of frames (T, H, W, 3); on ``device`` where that is CUDA, on the CPU otherwise.

    The copy comes from pinned memory, and nobody waits for it.
    """
    pixels = torch.from_numpy(np.ascontiguousarray(frames))
    if device.type == "cuda":
        pixels = pixels.pin_memory().to(device, non_blocking=True)
    return pixels.permute(0, 3, 1, 2)


def resized(pixels: torch.Tensor, height: int, width: int, mode: str) -> torch.Tensor:
    """Bytes (T, 3, H, W) as bytes (T, 3, height, width), whatever the ratio; antialiased."""
    if pixels.shape[-2:] == (height, width):
        return pixels
    if mode == "nearest":
        return F.interpolate(pixels, size=(height, width), mode=mode)
    if pixels.device.type == "cpu":
        return F.interpolate(pixels, size=(height, width), mode=mode, antialias=True)
    return _by_floats(pixels, height, width, mode)


def _by_floats(pixels: torch.Tensor, height: int, width: int, mode: str) -> torch.Tensor:
    """As :func:`resized`, for devices whose antialiased interpolation does not take bytes.

    That of bytes is done along rows and then along columns, with bytes in between: what is beyond black or white
    after the first is lost to the second. There Lanczos' filter gives way to the bicubic one, as in the library.
    """
    mode = "bicubic" if mode == "lanczos" else mode
    parts = []
    for part in pixels.split(_AT_ONCE):
        for size in ((part.shape[-2], width), (height, width)):
            floats = F.interpolate(part.float(), size=size, mode=mode, antialias=True)
            part = floats.round_().clamp_(0, 255).to(torch.uint8)
        parts.append(part)
    return torch.cat(parts)


def scaled(pixels: torch.Tensor, rules: PixelRules) -> torch.Tensor:
    """Bytes (..., 3, H, W) as normalised float32."""
    mean = torch.tensor(rules.mean, device=pixels.device)[:, None, None]
    std = torch.tensor(rules.std, device=pixels.device)[:, None, None]
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
