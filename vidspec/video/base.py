"""The types that pass through vidspec.video: Index, Clip, Decoder. Opens no file and decodes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vidspec.errors import UsageError
from vidspec.events.source import SourceFacts

__all__ = [
    "Clip",
    "ClipDamage",
    "Frame",
    "FrameDecoder",
    "Index",
    "NotDelivered",
    "Orientation",
    "PutFrame",
    "format_seconds",
]

Frame = NDArray[np.uint8]
"""One picture, upright: (height, width, 3), uint8, RGB."""
PutFrame: TypeAlias = Callable[[int, Frame], None]
"""Takes a frame by its position in the index: each once, in any order, from any thread."""


@dataclass(frozen=True)
class Orientation:
    """How a coded picture becomes upright: mirrored left to right first, then turned counter-clockwise."""

    degrees: int = 0
    mirrored: bool = False

    def apply(self, picture: Frame) -> Frame:
        """``picture`` (H, W, 3) made upright: a view, (W, H, 3) for quarter turns."""
        if self.mirrored:
            picture = picture[:, ::-1]
        return np.rot90(picture, self.degrees // 90) if self.degrees else picture

    def size(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) of an upright picture coded as ``width`` x ``height``."""
        return (height, width) if self.degrees % 180 else (width, height)


@dataclass(frozen=True)
class ClipDamage:
    """``what`` is wrong with a file, and between which times (seconds); without them, it may be anywhere.

    ``hint``: what to do about it, where that is special.
    """

    what: str
    start: float | None = None
    end: float | None = None
    hint: str | None = None

    def affects(self, start: float | None, end: float | None) -> bool:
        """Whether the part of the clip from ``start`` to ``end`` (None: as far as it goes) may be affected."""
        return (end is None or self.start is None or self.start < end) and (
            start is None or self.end is None or self.end > start
        )


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames of one video, exact, in the order they are shown, and what is heard meanwhile.

    ``frames``: (N, H, W, 3) uint8 RGB, upright. ``timestamps``: (N,) float64, seconds since the first frame of the
    stream. A frame occurs twice only where ``fps`` asks for more frames than the video has. ``sound``: (S,) float32,
    mono, 16 kHz, from the first frame on; None where there is none, or it was not asked for.
    """

    frames: NDArray[np.uint8]
    timestamps: NDArray[np.float64]
    facts: SourceFacts
    sound: NDArray[np.float32] | None = None

    @classmethod
    def of(
        cls, frames: NDArray[np.uint8], timestamps: Sequence[float], sound: NDArray[np.float32] | None = None
    ) -> Clip:
        """Frames that were decoded elsewhere, with their times; of the file nothing is known, and no decoder is loaded.

        Raises UsageError: not (N, H, W, 3) uint8, or not as many times as frames.
        """
        if (
            frames.dtype != np.uint8
            or frames.ndim != 4
            or frames.shape[3] != 3
            or not len(frames) == len(timestamps) > 0
        ):
            raise UsageError(
                f"{len(timestamps)} times and frames of {frames.dtype} {frames.shape}",
                hint="frames are (N, H, W, 3) uint8 in RGB, at N times in seconds",
            )
        times = np.asarray(timestamps, np.float64)
        seconds = float(times[-1] - times[0]) * len(times) / max(1, len(times) - 1)
        height, width, count = *frames.shape[1:3], len(frames)
        rate = count / seconds if seconds else 0.0
        facts = SourceFacts("", float(times[0]) + seconds, width, height, "none", "none", rate, False, 0, count, "none")
        return cls(frames, times, facts, sound)

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def nbytes(self) -> int:
        return self.frames.nbytes + (0 if self.sound is None else self.sound.nbytes)

    def without_frames(self) -> Clip:
        """The same facts and times, with as many frames of no pixels: (N, 0, 0, 3)."""
        return replace(self, frames=np.empty((len(self), 0, 0, 3), np.uint8), sound=None)


@dataclass(frozen=True, eq=False)
class Index:
    """The frames of a file in presentation order, and what decoding them takes; made by ``probe``.

    ``pts``: (N,) int64, strictly increasing, in units of ``time_base`` (seconds). ``order`` says what a frame is
    found by: ``pts``, or ``count`` where timestamps cannot be trusted and frames are counted as they leave the
    decoder; then ``raw`` (N,) holds the timestamp the decoder gives each (or ``NO_PTS``). ``key_pts`` and
    ``key_dts`` (K,) are the keyframes one can seek to. ``width`` and ``height`` are upright. ``truncated``: the file
    ends before the stream does. ``doubts`` are the reasons not to trust the timestamps' simplest reading. ``damage`` is
    what is known to be missing or changed; ``origin`` the time of the first frame, also where that one is lost.
    ``open_start``: an H.264 stream begins with a keyframe whose followers may refer to what was before it.
    ``suspects`` are positions next to gaps in time that may be a loss: whether they decode tells.
    """

    path: str
    format: str
    codec: str
    stream: int
    time_base: Fraction
    pts: NDArray[np.int64]
    raw: NDArray[np.int64]
    key_pts: NDArray[np.int64]
    key_dts: NDArray[np.int64]
    order: Literal["pts", "count"]
    width: int
    height: int
    turn: Orientation
    duration_s: float
    truncated: bool
    doubts: tuple[str, ...]
    damage: tuple[ClipDamage, ...] = ()
    origin: int | None = None
    suspects: tuple[int, ...] = ()
    open_start: bool = False

    NO_PTS = -(1 << 63)

    def __len__(self) -> int:
        return len(self.pts)

    @property
    def first(self) -> int:
        """The time of the first frame, lost or not, in units of ``time_base``."""
        return int(self.pts[0]) if self.origin is None else self.origin

    @cached_property
    def times(self) -> NDArray[np.float64]:
        """(N,) seconds since the first frame."""
        return np.asarray((self.pts - self.first) * float(self.time_base), np.float64)

    @property
    def fps(self) -> float:
        """Mean frames per second; 0 for a single frame of unknown duration."""
        if len(self) > 1:
            return float((len(self) - 1) / (int(self.pts[-1] - self.pts[0]) * self.time_base))
        return 1.0 / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def variable_fps(self) -> bool:
        """Whether gaps between frames differ by more than rounding to the container's clock explains."""
        if len(self) < 3:
            return False
        gaps = np.diff(self.pts)
        usual = float(np.median(gaps))
        rounding = 1.0 if usual >= 5 else 0.0
        return bool(np.abs(gaps - usual).max() > rounding + 0.1 * usual)

    @property
    def container(self) -> str:
        """The short name of the container: of FFmpeg's aliases the one the file's suffix uses, else the first."""
        names = self.format.split(",")
        suffix = self.path.rsplit(".", 1)[-1].lower()
        return suffix if suffix in names else names[0].removesuffix("_pipe")


class NotDelivered(Exception):
    """A decoder could not deliver the frames exactly; another may. Never leaves vidspec.video.

    ``damaged``: the stream itself is broken there. ``position``: the first frame missing, if known.
    """

    def __init__(self, reason: str, *, damaged: bool = False, position: int | None = None):
        super().__init__(reason)
        self.reason = reason
        self.damaged = damaged
        self.position = position


class FrameDecoder(Protocol):
    """Delivers exact frames of an indexed file, or raises ``NotDelivered``; holds nothing open afterwards."""

    name: str

    def frames(self, index: Index, wanted: Sequence[int], size: tuple[int, int], put: PutFrame) -> None:
        """Delivers each of ``wanted`` (increasing positions in ``index``), scaled to ``size`` (width, height)."""
        ...


def format_seconds(seconds: float) -> str:
    """``seconds`` for an error message: at most milliseconds, no trailing zeros."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + " s"


def check_seconds(name: str, value: float | None) -> None:
    """Raises UsageError unless ``value`` is None or a finite number of seconds that is not negative."""
    if value is not None and not (np.isfinite(value) and value >= 0):
        raise UsageError(f"{name} must be zero or more seconds, not {value}")
