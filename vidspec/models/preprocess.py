"""Preprocessing of decoded frames, equal to the checkpoints' processors; torch only, no torchvision.

Frames are resized and cropped as bytes, and stay bytes until a vision tower reads them: :func:`normalise` runs on each
chunk. For a CUDA device the frames are copied there and resized there. The resized bytes equal the CPU's except for
fewer than one in a hundred, which differ by one, rarely two, of 255: the CPU also rounds the filter's weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from vidspec.engine.device import to_device
from vidspec.errors import ModelError
from vidspec.models.frame_rules import MergedPatches, best_resolution, fit_inside
from vidspec.video.base import Clip

#: True if torch has the Lanczos filter (bytes on a CPU); transformers falls back to bicubic without it.
_LANCZOS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 12)
#: Interpolation by PIL's resampling number, which processor configs use.
MODES = {0: "nearest", 1: "lanczos" if _LANCZOS else "bicubic", 2: "bilinear", 3: "bicubic"}
CPU = torch.device("cpu")
#: The JSON of a processor's config.
ProcessorConfig: TypeAlias = Mapping[str, Any]
#: CLIP's mean and standard deviation, the defaults of its image processors.
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
#: Most pixels of a resized frame; published processors make a quarter of that at most.
MAX_PIXELS = 1 << 26
#: Frames resized at once as floats.
_FLOAT_BATCH = 8


@dataclass(frozen=True)
class PixelRules:
    """Size and normalisation of a checkpoint's frames.

    Attributes:
        height, width: size of every frame, aspect ratio ignored.
        mean, std: per channel, of values in [0, 1].
        mode: interpolation.
        scale: factor of the bytes.
    """

    height: int
    width: int
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    mode: str = "bicubic"
    scale: float = 1 / 255

    def __post_init__(self) -> None:
        _check_size(self.height, self.width)

    @classmethod
    def from_config(cls, config: ProcessorConfig, image_size: int) -> PixelRules:
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


def seconds_of(clip: Clip) -> tuple[float, ...]:
    """Return the time of each frame."""
    return tuple(float(time) for time in clip.timestamps)


def resize_to_square(frames: NDArray[np.uint8], rules: PixelRules, device: torch.device = CPU) -> torch.Tensor:
    """Resize frames to the size of ``rules``, ignoring their aspect ratio.

    Bytes are resized with antialiasing, as in torchvision, so that the results are equal.

    Args:
        frames: (T, H, W, 3) uint8 RGB.
        rules: size and interpolation.
        device: of the model.

    Returns:
        (T, 3, height, width) uint8, where :func:`channels_first` puts the frames.
    """
    return resize(channels_first(frames, device), rules.height, rules.width, rules.mode)


def channels_first(frames: NDArray[np.uint8], device: torch.device = CPU) -> torch.Tensor:
    """Return frames (T, H, W, 3) as (T, 3, H, W) uint8, on ``device`` if that is CUDA, else on the CPU.

    The copy is asynchronous, from pinned memory.
    """
    pixels = torch.from_numpy(np.ascontiguousarray(frames))
    if device.type == "cuda":
        pixels = to_device(pixels, device)
    return pixels.permute(0, 3, 1, 2)


def resize(pixels: torch.Tensor, height: int, width: int, mode: str) -> torch.Tensor:
    """Resize bytes (T, 3, H, W) to (T, 3, height, width) with antialiasing, ignoring the aspect ratio.

    Raises:
        ModelError: that is larger than any model reads.
    """
    _check_size(height, width)
    if pixels.shape[-2:] == (height, width):
        return pixels
    if mode == "nearest":
        return F.interpolate(pixels, size=(height, width), mode=mode)
    if pixels.device.type == "cpu":
        return F.interpolate(pixels, size=(height, width), mode=mode, antialias=True)
    return resize_as_floats(pixels, height, width, mode)


def _check_size(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        message = f"the config of the model's processor makes frames of {width} x {height} pixels, too many"
        raise ModelError(message, hint="take the original preprocessor_config.json", kind="unreadable")


def resize_as_floats(pixels: torch.Tensor, height: int, width: int, mode: str) -> torch.Tensor:
    """Resize like :func:`resize` on devices whose antialiased interpolation does not support bytes.

    The byte version resizes rows, then columns, and clamps to bytes in between; so does this one. The bicubic filter
    replaces Lanczos', as in ``transformers``.
    """
    mode = "bicubic" if mode == "lanczos" else mode
    parts = []
    for part in pixels.split(_FLOAT_BATCH):
        for size in ((part.shape[-2], width), (height, width)):
            floats = F.interpolate(part.float(), size=size, mode=mode, antialias=True)
            part = floats.round_().clamp_(0, 255).to(torch.uint8)
        parts.append(part)
    return torch.cat(parts)


def normalise(pixels: torch.Tensor, rules: PixelRules) -> torch.Tensor:
    """Normalise bytes (..., 3, H, W), or patches (P, 3 * n) with a channel's n bytes contiguous, to float32."""
    mean = torch.tensor(rules.mean, device=pixels.device)[:, None, None]
    std = torch.tensor(rules.std, device=pixels.device)[:, None, None]
    values = pixels.float()
    channels = values.unflatten(-1, (len(mean), -1, 1)) if values.dim() == 2 else values
    channels.mul_(rules.scale).sub_(mean).div_(std)
    return values


@dataclass(frozen=True)
class ImageRules:
    """Size, crop and normalisation of a checkpoint's images.

    Attributes:
        pixels: final size, interpolation and normalisation.
        edge: size of the shortest edge, aspect ratio kept; None resizes to the final size, ratio ignored.
        square: pad images to squares with the mean colour first.
    """

    pixels: PixelRules
    edge: int | None
    square: bool = False

    @classmethod
    def from_config(cls, config: ProcessorConfig, image_size: int) -> ImageRules:
        """Read an image processor's config; missing keys fall back to CLIP's values at the tower's image size."""
        size = _parse_size(config.get("size"), "shortest_edge") or {"shortest_edge": image_size}
        edge = size.get("shortest_edge")
        crop = None
        if config.get("do_center_crop", edge is not None):
            crop = _parse_size(config.get("crop_size"), None) or {"height": image_size, "width": image_size}
        settings = {
            "image_mean": CLIP_MEAN,
            "image_std": CLIP_STD,
            **{k: v for k, v in config.items() if v is not None},
        }
        pixels = PixelRules.from_config({**settings, "size": crop or size}, image_size)
        square = bool(config.get("do_pad")) and str(config.get("image_processor_type", "")).startswith("LlavaImage")
        return cls(pixels, edge, square)


def _parse_size(value: Mapping[str, int] | int | None, of_one: str | None) -> dict[str, int]:
    """Parse a size of a processor config: a mapping, or a number in old configs."""
    if isinstance(value, int):
        return {of_one: value} if of_one else {"height": value, "width": value}
    return dict(value or {})


def resize_and_crop(frames: NDArray[np.uint8], rules: ImageRules, device: torch.device = CPU) -> torch.Tensor:
    """Resize and centre-crop frames (T, H, W, 3) to (T, 3, height, width) uint8."""
    cropped = []
    for pixels in channels_first(frames, device).split(1):  # one by one: padding to squares can multiply a frame's size
        cropped.append(_resize_then_crop(_pad_to_square(pixels, rules.pixels) if rules.square else pixels, rules))
    return torch.cat(cropped)


def cut_tiles(
    frames: NDArray[np.uint8], rules: ImageRules, resolutions: Sequence[Sequence[int]], device: torch.device = CPU
) -> torch.Tensor:
    """Cut frames (T, H, W, 3) to (T, 1 + n, 3, height, width) uint8: the whole, then its n tiles in raster order.

    The tiles show the frame at the best of the ``resolutions`` (rows, columns of pixels), aspect ratio kept, centred on
    black.
    """
    pixels = channels_first(frames, device)
    side, mode = rules.pixels.height, rules.pixels.mode
    edge = rules.edge or side
    size = (pixels.shape[-2], pixels.shape[-1])
    best = best_resolution(size, resolutions)
    height, width = fit_inside(size, best)
    top, left = (best[0] - height) // 2, (best[1] - width) // 2
    inside = resize(pixels, height, width, mode)
    canvas = F.pad(inside, (left, best[1] - width - left, top, best[0] - height - top))
    tiles = canvas.unfold(-2, side, side).unfold(-2, side, side)  # (T, 3, rows, columns, side, side)
    tiles = tiles.permute(0, 2, 3, 1, 4, 5).flatten(1, 2)
    whole = resize(pixels, edge, edge, mode)[:, None]
    parts = [_resize_then_crop(part.flatten(0, 1), rules).unflatten(0, part.shape[:2]) for part in (whole, tiles)]
    return torch.cat(parts, dim=1)


def _pad_to_square(pixels: torch.Tensor, rules: PixelRules) -> torch.Tensor:
    height, width = pixels.shape[-2:]
    longest = max(height, width)
    colour = torch.tensor([int(level * 255) for level in rules.mean], dtype=torch.uint8, device=pixels.device)
    square = colour[None, :, None, None].repeat(len(pixels), 1, longest, longest)
    top, left = (longest - height) // 2, (longest - width) // 2
    square[..., top : top + height, left : left + width] = pixels
    return square


def _resize_then_crop(pixels: torch.Tensor, rules: ImageRules) -> torch.Tensor:
    """Resize bytes (T, 3, H, W) and crop them to the size of ``rules``; pad with black where that is larger."""
    final = (rules.pixels.height, rules.pixels.width)
    if rules.edge is None:
        return resize(pixels, *final, rules.pixels.mode)
    height, width = pixels.shape[-2:]
    longest = int(rules.edge * max(height, width) / min(height, width))
    size = (longest, rules.edge) if width <= height else (rules.edge, longest)
    pixels = resize(pixels, *size, rules.pixels.mode)
    missing = [max(0, want - have) for want, have in zip(final, size, strict=True)]
    if any(missing):
        down, across = missing
        pixels = F.pad(pixels, (across // 2, across - across // 2, down // 2, down - down // 2))
    top, left = ((have - want) // 2 for want, have in zip(final, pixels.shape[-2:], strict=True))
    return pixels[..., top : top + final[0], left : left + final[1]]


def pool_features(features: torch.Tensor) -> torch.Tensor:
    """Average features 2 x 2 (TABED 6.1, the pooled context). **D**: the last row or column of an odd side stays alone.

    Args:
        features: (T, rows, columns, d).

    Returns:
        (T, ceil(rows / 2), ceil(columns / 2), d).
    """
    channels_first = features.permute(0, 3, 1, 2)
    pooled = F.avg_pool2d(channels_first, 2, ceil_mode=True, count_include_pad=False)
    return pooled.permute(0, 2, 3, 1)


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
