"""Results of examining a container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class DamageSpot(NamedTuple):
    """One defect: ``what`` it is, and the byte ``at`` which it was noticed (None: in the file's index).

    ``end``: it lies before this byte, if it is not at ``at`` alone.
    """

    at: int | None
    what: str
    end: int | None = None


@dataclass
class DamageReport:
    """Result of examining a container.

    ``spots``: in the file's order. ``hints``: signs that bytes are missing, though none of the video's own; with a gap
    in time they are damage. ``ends_early``: the end of the file is cut off; None if unknown. ``joined``: the byte at
    which another stream, with its own clock, follows the first. ``appended``: another film follows that is not read.
    """

    spots: tuple[DamageSpot, ...] = ()
    hints: tuple[int, ...] = ()
    ends_early: bool | None = None
    joined: int | None = None
    appended: bool = False
