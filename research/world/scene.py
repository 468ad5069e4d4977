"""The world the built-in models know: a few coloured shapes that move on a patterned background.

A :class:`Scene` is the exact ground truth of a clip. Nothing is drawn, worded or scored here.

Geometry: positions are fractions of the frame's width (x, rightwards) and height (y, downwards); radii are fractions of
the height; frames are 4:3. Time ``t`` runs from 0 (first frame) to 1 (last frame).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from vidspec.embedded.prompts import SHAPES

ASPECT = 4 / 3

#: Object colours (RGB).
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (225, 35, 35),
    "orange": (245, 140, 20),
    "yellow": (245, 230, 50),
    "green": (45, 190, 60),
    "cyan": (50, 220, 230),
    "blue": (60, 90, 245),
    "purple": (150, 60, 210),
    "pink": (250, 150, 200),
    "white": (245, 245, 245),
}
#: Radius in fractions of the frame's height.
SIZES: dict[str, float] = {"small": 0.085, "large": 0.15}
MOTIONS = ("still", "right", "left", "up", "down", "circles", "appears", "vanishes")
#: Background colours (RGB), all darker than any object.
BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "black": (8, 8, 8),
    "grey": (88, 88, 88),
    "navy": (18, 24, 84),
    "maroon": (88, 14, 28),
    "brown": (92, 62, 34),
    "teal": (6, 84, 84),
}
PATTERNS = ("plain", "striped", "checkered", "dotted")
#: Names of the nine places, by (column, row).
PLACES: dict[tuple[int, int], str] = {
    (0, 0): "top left",
    (1, 0): "top",
    (2, 0): "top right",
    (0, 1): "left",
    (1, 1): "centre",
    (2, 1): "right",
    (0, 2): "bottom left",
    (1, 2): "bottom",
    (2, 2): "bottom right",
}
_LANES = (0.2, 0.5, 0.8)
_JITTER = 0.035
_CIRCLE_RADIUS = 0.15


@dataclass(frozen=True)
class Thing:
    """One object: its looks, starting place, motion and final place."""

    colour: str
    shape: str
    size: str
    motion: str
    start: tuple[int, int]
    end: tuple[int, int]
    at: tuple[float, float]  # exact start (x, y); for ``circles`` the centre of the circle
    turns: float = 0.0  # ``circles``: signed number of turns over the clip
    phase: float = 0.0  # ``circles``: radians at t = 0
    switch: float = 0.0  # ``appears``/``vanishes``: the time it happens

    @property
    def radius(self) -> float:
        return SIZES[self.size]

    @property
    def place(self) -> str:
        return PLACES[self.start]

    @property
    def end_place(self) -> str | None:
        """Place in the last frame; None if it has vanished."""
        return None if self.motion == "vanishes" else PLACES[self.end]

    def visible(self, t: float) -> bool:
        if self.motion == "appears":
            return t >= self.switch
        if self.motion == "vanishes":
            return t < self.switch
        return True

    def position(self, t: float) -> tuple[float, float]:
        x, y = self.at
        if self.motion == "circles":
            angle = self.phase + 2 * math.pi * self.turns * t
            return x + _CIRCLE_RADIUS * math.cos(angle) / ASPECT, y + _CIRCLE_RADIUS * math.sin(angle)
        dx = (_LANES[self.end[0]] - _LANES[self.start[0]]) * t
        dy = (_LANES[self.end[1]] - _LANES[self.start[1]]) * t
        return x + dx, y + dy


@dataclass(frozen=True)
class Scene:
    """A clip's ground truth. ``things`` are in the order a caption names them.

    The order is decided by what can be seen: things present in the first frame from left to right, then those that
    appear later, from left to right. ``seed`` fixes the drawing's small variations, ``shade`` the pattern's contrast.
    """

    things: tuple[Thing, ...]
    background: str
    pattern: str
    seed: int


def _thing(rng: random.Random, column: int, colour: str) -> Thing:
    motion = rng.choice(MOTIONS)
    row = rng.randrange(3)
    start = (column, row)
    end = start
    if motion in ("right", "left"):
        ends = [c for c in range(3) if (c > column if motion == "right" else c < column)]
        if not ends:
            motion = "left" if motion == "right" else "right"
            ends = [c for c in range(3) if c != column]
        end = (rng.choice(ends), row)
    elif motion in ("up", "down"):
        rows = [r for r in range(3) if (r < row if motion == "up" else r > row)]
        if not rows:
            motion = "down" if motion == "up" else "up"
            rows = [r for r in range(3) if r != row]
        end = (column, rng.choice(rows))
    at = (
        _LANES[column] + rng.uniform(-_JITTER, _JITTER),
        _LANES[row] + rng.uniform(-_JITTER, _JITTER),
    )
    return Thing(
        colour=colour,
        shape=rng.choice(SHAPES),
        size=rng.choice(tuple(SIZES)),
        motion=motion,
        start=start,
        end=end,
        at=at,
        turns=rng.choice((-1, 1)) * rng.choice((1.5, 2.0, 2.5)) if motion == "circles" else 0.0,
        phase=rng.uniform(0, 2 * math.pi) if motion == "circles" else 0.0,
        switch=rng.uniform(0.35, 0.65) if motion in ("appears", "vanishes") else 0.0,
    )


def _clear(things: tuple[Thing, ...]) -> bool:
    """True if no two things hide each other at the start or the end, or for more than a fifth of the clip."""
    steps = 16
    for i, a in enumerate(things):
        for b in things[i + 1 :]:
            hidden = 0
            for k in range(steps):
                t = k / (steps - 1)
                if not (a.visible(t) and b.visible(t)):
                    continue
                (ax, ay), (bx, by) = a.position(t), b.position(t)
                distance = math.hypot((ax - bx) * ASPECT, ay - by)
                if distance < 0.95 * (a.radius + b.radius):
                    if k in (0, steps - 1):
                        return False
                    hidden += 1
            if hidden > steps // 5:
                return False
    return True


def draw_scene(rng: random.Random, *, count: int | None = None, most: int = 3) -> Scene:
    """Draw a scene of ``count`` things (random from 1 to ``most`` if None), all of different colours."""
    count = rng.randint(1, most) if count is None else count
    while True:
        columns = sorted(rng.sample(range(3), count))
        colours = rng.sample(tuple(COLOURS), count)
        things = tuple(_thing(rng, column, colour) for column, colour in zip(columns, colours, strict=True))
        if len({thing.end for thing in things}) == count and _clear(things):
            break
    ordered = sorted(things, key=lambda thing: (thing.motion == "appears", thing.start[0]))
    return Scene(
        things=tuple(ordered),
        background=rng.choice(tuple(BACKGROUNDS)),
        pattern=rng.choice(PATTERNS),
        seed=rng.randrange(2**31),
    )
