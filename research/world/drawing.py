"""Rendering of scenes to pixels, and to the dense labels for training the vision towers. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from research.world.scene import ASPECT, BACKGROUNDS, COLOURS, Scene, Thing

Floats: TypeAlias = NDArray[np.float32]
#: Times in [0, 1], one per frame.
Times: TypeAlias = Sequence[float] | NDArray[np.float64]


def _grid(height: int, width: int) -> tuple[Floats, Floats]:
    """Return pixel centres in units of the frame's height: x in [0, 4/3], y in [0, 1]."""
    x = (np.arange(width, dtype=np.float32) + 0.5) / width * ASPECT
    y = (np.arange(height, dtype=np.float32) + 0.5) / height
    return x.astype(np.float32), y.astype(np.float32)


def _distance(thing: Thing, x: Any, y: Any) -> Any:
    """Return the signed distance (negative inside, approximate outside) to the outline of ``thing`` at the origin."""
    r = np.float32(thing.radius)
    if thing.shape == "circle":
        return np.hypot(x, y) - r
    if thing.shape == "square":
        return np.maximum(np.abs(x), np.abs(y)) - 0.87 * r
    if thing.shape == "triangle":
        # Pointing up: the bottom edge and two slanted edges, each half a radius from the centroid.
        low = y - 0.55 * r
        slanted = 0.866 * np.abs(x) - 0.5 * y - 0.55 * r
        return np.maximum(low, slanted)
    if thing.shape == "cross":
        ax, ay = np.abs(x), np.abs(y)
        long, short = r, 0.34 * r
        return np.minimum(np.maximum(ax - long, ay - short), np.maximum(ax - short, ay - long))
    if thing.shape == "ring":
        return np.abs(np.hypot(x, y) - 0.74 * r) - 0.26 * r
    # star: five tips at radius 1.1 r, inner corners at 0.46 r, straight edges between them
    angle = np.arctan2(x, -y)
    folded = np.abs((angle + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5)
    px, py = np.hypot(x, y) * np.cos(folded), np.hypot(x, y) * np.sin(folded)
    tip = np.array([1.1, 0.0], dtype=np.float32) * r
    corner = 0.46 * r * np.array([np.cos(np.pi / 5), np.sin(np.pi / 5)], dtype=np.float32)
    edge = corner - tip
    normal = np.array([edge[1], -edge[0]]) / np.hypot(*edge)
    return np.asarray((px - tip[0]) * normal[0] + (py - tip[1]) * normal[1], dtype=np.float32)


def _masks(scene: Scene, times: Times, height: int, width: int) -> Floats:
    """Return the anti-aliased coverage of each thing, (things, T, height, width) in [0, 1], before occlusion."""
    x, y = _grid(height, width)
    pixel = 0.5 * (ASPECT / width + 1 / height)
    masks = np.zeros((len(scene.things), len(times), height, width), dtype=np.float32)
    for i, thing in enumerate(scene.things):
        reach = 1.15 * thing.radius + pixel
        for k, t in enumerate(times):
            if not thing.visible(t):
                continue
            cx, cy = thing.position(t)
            cx *= ASPECT
            x0, x1 = np.searchsorted(x, [cx - reach, cx + reach])
            y0, y1 = np.searchsorted(y, [cy - reach, cy + reach])
            if x0 == x1 or y0 == y1:
                continue
            distance = _distance(thing, x[None, x0:x1] - cx, y[y0:y1, None] - cy)
            masks[i, k, y0:y1, x0:x1] = np.clip(0.5 - distance / pixel, 0.0, 1.0)
    return masks


def _backdrop(scene: Scene, height: int, width: int, rng: np.random.Generator) -> Floats:
    """Return the background alone, (height, width, 3) in 0..255."""
    base = np.array(BACKGROUNDS[scene.background], dtype=np.float32) + rng.uniform(-6, 6, 3).astype(np.float32)
    lighter = base + 34 + 0.25 * base
    x, y = _grid(height, width)
    period = float(rng.uniform(0.13, 0.19))
    u = (x[None, :] + rng.uniform(0, period)) / period
    v = (y[:, None] + rng.uniform(0, period)) / period
    if scene.pattern == "plain":
        mask = np.zeros((height, width), dtype=bool)
    elif scene.pattern == "striped":
        mask = np.broadcast_to((u % 1) < 0.5, (height, width))
    elif scene.pattern == "checkered":
        mask = ((np.floor(2 * u) + np.floor(2 * v)) % 2) == 0
    else:
        mask = np.hypot((u % 1) - 0.5, (v % 1) - 0.5) < 0.27
    return np.where(mask[..., None], lighter, base).astype(np.float32)


def frames(scene: Scene, times: Times, height: int = 240, width: int = 320) -> NDArray[np.uint8]:
    """Draw the scene at each time.

    Args:
        scene: what to draw; its ``seed`` fixes the small variations of colour and pattern.
        times: T times in [0, 1].
        height, width: of the frames in pixels; the world is 4:3, other ratios are squeezed to it.

    Returns:
        (T, height, width, 3) uint8.
    """
    rng = np.random.default_rng(scene.seed)
    out = np.repeat(_backdrop(scene, height, width, rng)[None], len(times), axis=0)
    pixels = out.reshape(-1, 3)
    for thing, mask in zip(scene.things, _masks(scene, times, height, width), strict=True):
        colour = np.array(COLOURS[thing.colour], dtype=np.float32) + rng.uniform(-9, 9, 3).astype(np.float32)
        covered = np.flatnonzero(mask)  # a small part of the picture
        pixels[covered] += mask.reshape(-1, 1)[covered] * (colour - pixels[covered])
    drawn: NDArray[np.uint8] = np.clip(out + 0.5, 0, 255).astype(np.uint8)
    return drawn


def coverage(scene: Scene, times: Times, rows: int, columns: int, finer: int = 4) -> Floats:
    """Return the share of each cell of a ``rows`` x ``columns`` grid that each thing visibly covers.

    Args:
        scene: the scene.
        times: T times in [0, 1].
        rows, columns: of the grid, which spans the whole frame.
        finer: samples per cell and axis.

    Returns:
        (things, T, rows, columns) float32 in [0, 1]; things drawn later hide those drawn before.
    """
    masks = _masks(scene, times, rows * finer, columns * finer)
    for i in range(len(masks) - 1):
        masks[i] *= np.prod(1.0 - masks[i + 1 :], axis=0)
    shape = (len(masks), len(times), rows, finer, columns, finer)
    return np.asarray(masks.reshape(shape).mean(axis=(3, 5)), dtype=np.float32)
