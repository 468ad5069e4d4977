"""Preprocessing for the Qwen-VL towers: dynamic resolution, patches of several frames; torch only, no torchvision.

The rules follow the video processors of ``transformers`` 5.23; a checkpoint's config takes precedence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from vidspec.models.frame_rules import MergedPatches
from vidspec.models.preprocess import CPU, MODES, PixelRules, ProcessorConfig, resize_to_square


@dataclass(frozen=True)
class GridRules(MergedPatches):
    """Frame sizes and normalisation of a checkpoint.

    Attributes:
        mean, std, mode, scale: as in :class:`~vidspec.models.preprocess.PixelRules`.
    """

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    mode: str = "bicubic"
    scale: float = 1 / 255

    @classmethod
    def from_config(cls, config: ProcessorConfig, defaults: GridRules) -> GridRules:
        """Read a processor config; missing keys fall back to ``defaults``.

        ``min_pixels`` and ``max_pixels``, older names of the budget, override ``size``, as in ``transformers``;
        Qwen3-VL's processor ignores them.
        """
        size = dict(config.get("size") or {})
        low, high = size.get("shortest_edge"), size.get("longest_edge")
        if not defaults.whole_clip:
            low, high = config.get("min_pixels") or low, config.get("max_pixels") or high
        return replace(
            defaults,
            patch=int(config.get("patch_size") or defaults.patch),
            merge=int(config.get("merge_size") or defaults.merge),
            steps=int(config.get("temporal_patch_size") or defaults.steps),
            max_video_tokens=int(config.get("max_video_tokens") or defaults.max_video_tokens),
            min_pixels=int(low or defaults.min_pixels),
            max_pixels=int(high or defaults.max_pixels),
            capped=bool(config.get("cap_pixels_per_frame") or False),
            mean=tuple(config.get("image_mean") or defaults.mean),
            std=tuple(config.get("image_std") or defaults.std),
            mode=MODES.get(config.get("resample", 3), "bicubic"),
            scale=float(config.get("rescale_factor", 1 / 255)),
        )


def patches(
    frames: NDArray[np.uint8], rules: GridRules, device: torch.device = CPU
) -> tuple[torch.Tensor, tuple[int, int, int], PixelRules]:
    """Resize a clip and cut it into patches.

    Args:
        frames: (T, H, W, 3) uint8 RGB.
        rules: rules of the checkpoint.
        device: device of the model, see :func:`~vidspec.models.preprocess.channels_first`.

    Returns:
        The patches and grid of :func:`patchify`, uint8, and the rules that normalise them.
    """
    height, width = rules.size(*frames.shape[:3])
    pixels = PixelRules(height, width, rules.mean, rules.std, rules.mode, rules.scale)
    return *patchify(resize_to_square(frames, pixels, device), rules), pixels


def patchify(shown: torch.Tensor, rules: GridRules) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """Cut frames into patches; the last frame is repeated to fill the last temporal patch.

    Args:
        shown: (T, 3, H, W), H and W multiples of ``patch * merge``.
        rules: rules of the checkpoint.

    Returns:
        Patches (steps * rows * columns, 3 * frames per step * patch ** 2), and the grid (steps, rows, columns) of
        patches. The ``merge ** 2`` patches of a visual token are contiguous, tokens are in raster order, and the values
        of a patch are ordered by channel.
    """
    if short := -len(shown) % rules.steps:
        shown = torch.cat([shown, shown[-1:].expand(short, -1, -1, -1)])
    steps = len(shown) // rules.steps
    rows, columns = (side // rules.patch for side in shown.shape[-2:])
    cut = shown.reshape(
        steps,
        rules.steps,
        3,
        rows // rules.merge,
        rules.merge,
        rules.patch,
        columns // rules.merge,
        rules.merge,
        rules.patch,
    )
    ordered = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(steps * rows * columns, -1), (steps, rows, columns)
