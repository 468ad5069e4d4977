"""Results of examining a container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class DamageSpot(NamedTuple):
    """One defect.

    Attributes:
        what: description for a message.
        at: byte at which it was noticed; None if in the file's index.
        end: byte before which it lies, if it is not at ``at`` alone.
    """

    at: int | None
    what: str
    end: int | None = None


@dataclass
class DamageReport:
    """Result of examining a container.

    Attributes:
        spots: defects, in the file's order.
        hints: bytes at which something other than video is missing; together with a gap in time they are damage.
        ends_early: True if the end of the file is cut off; None if unknown.
        joined: byte at which another stream, with its own clock, follows the first.
        appended: another film follows that is not read.
    """

    spots: tuple[DamageSpot, ...] = ()
    hints: tuple[int, ...] = ()
    ends_early: bool | None = None
    joined: int | None = None
    appended: bool = False
