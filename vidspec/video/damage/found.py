"""What an examined container tells: places where something is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["DamageReport", "DamageSpot"]


class DamageSpot(NamedTuple):
    """Something wrong: ``what``, and the byte ``at`` which it was noticed (None: the file's index, not a place)."""

    at: int | None
    what: str


@dataclass
class DamageReport:
    """What examining a container found.

    ``spots``: in the file's order. ``hints``: signs that bytes are missing, though none of the video's own; with a gap
    in time they are damage. ``ends_early``: whether the last part of the file is cut off; None where it does not say.
    ``joined``: the byte from which on another stream, with a clock of its own, follows the first.
    """

    spots: tuple[DamageSpot, ...] = ()
    hints: tuple[int, ...] = ()
    ends_early: bool | None = None
    joined: int | None = None
