"""Types of vidspec.video: Index, Clip, FrameDecoder. Opens no file and decodes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vidspec.errors import UsageError
from vidspec.events.events import SourceFacts

Frame = NDArray[np.uint8]
"""One picture, upright: (height, width, 3), uint8, RGB."""
PutFrame: TypeAlias = Callable[[int, Frame], None]
"""Receives a frame with its position in the index: each once, in any order, from any thread."""


@dataclass(frozen=True)
class Orientation:
    """Transform from a coded picture to an upright one: mirrored left to right, then turned counter-clockwise."""

    degrees: int = 0
    mirrored: bool = False

    def apply(self, picture: Frame) -> Frame:
        """Return ``picture`` (H, W, 3) upright: a view, (W, H, 3) for quarter turns."""
        if self.mirrored:
            picture = picture[:, ::-1]
        return np.rot90(picture, self.degrees // 90) if self.degrees else picture

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return the (width, height) of an upright picture coded as ``width`` x ``height``."""
        return (height, width) if self.degrees % 180 else (width, height)


@dataclass(frozen=True)
class ClipDamage:
    """Damage of a file.

    Attributes:
        what: description for a message.
        start, end: seconds; None if the damage may lie anywhere.
        hint: advice if it differs from the usual.
    """

    what: str
    start: float | None = None
    end: float | None = None
    hint: str | None = None

    def affects(self, start: float | None, end: float | None) -> bool:
        """Return True if the part from ``start`` to ``end`` (None: open) may be affected."""
        return (end is None or self.start is None or self.start < end) and (
            start is None or self.end is None or self.end > start
        )


@dataclass(frozen=True, eq=False)
class Clip:
    """Exact frames of one video in presentation order, with their audio.

    Attributes:
        frames: (N, H, W, 3) uint8 RGB, upright. A frame is repeated only if ``fps`` exceeds the video's rate.
        timestamps: (N,) float64, seconds since the first frame of the stream.
        sound: (S,) float32, mono, 16 kHz, from the first frame on; None if there is none or it was not requested.
        interval: seconds of the selected part per requested frame; None if the frames were not chosen by number.
    """

    frames: NDArray[np.uint8]
    timestamps: NDArray[np.float64]
    facts: SourceFacts
    sound: NDArray[np.float32] | None = None
    interval: float | None = None

    @classmethod
    def of(
        cls, frames: NDArray[np.uint8], timestamps: Sequence[float], sound: NDArray[np.float32] | None = None
    ) -> Clip:
        """Make a clip of frames decoded elsewhere; it has no facts about a file, and no decoder is loaded.

        Raises:
            UsageError: not (N, H, W, 3) uint8, or not N finite times in order.
        """
        if not isinstance(frames, np.ndarray):
            raise UsageError(f"frames must be an array, not a {type(frames).__name__}", hint="numpy.stack makes one")
        try:
            times = np.asarray(timestamps, np.float64)
        except (TypeError, ValueError):
            raise UsageError(f"times must be seconds, not {timestamps!r}"[:200]) from None
        right = frames.dtype == np.uint8 and frames.ndim == 4 and frames.shape[3] == 3 and frames.size > 0
        if not right or times.shape != frames.shape[:1]:
            raise UsageError(
                f"{times.size} times and frames of {frames.dtype} {frames.shape}",
                hint="frames are (N, H, W, 3) uint8 in RGB, at N times in seconds",
            )
        if not np.isfinite(times).all() or (np.diff(times) < 0).any():
            raise UsageError("the times of frames must be finite, and in order")
        seconds = float(times[-1] - times[0]) * len(times) / max(1, len(times) - 1)
        height, width, count = *frames.shape[1:3], len(frames)
        rate = count / seconds if seconds else 0.0
        facts = SourceFacts("", float(times[0]) + seconds, width, height, "none", "none", rate, False, 0, count, "none")
        return cls(frames, times, facts, sound)

    @classmethod
    def empty(cls) -> Clip:
        """Make a clip without frames, for prompts without a video."""
        facts = SourceFacts("", 0.0, 0, 0, "none", "none", 0.0, False, 0, 0, "none")
        return cls(np.empty((0, 0, 0, 3), np.uint8), np.empty(0), facts)

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def nbytes(self) -> int:
        return self.frames.nbytes + (0 if self.sound is None else self.sound.nbytes)

    def without_frames(self) -> Clip:
        """Return the same facts and times, with as many frames of no pixels: (N, 0, 0, 3)."""
        return replace(self, frames=np.empty((len(self), 0, 0, 3), np.uint8), sound=None)


@dataclass(frozen=True, eq=False)
class Index:
    """The frames of a file in presentation order, and data for decoding them; made by ``probe``.

    Attributes:
        time_base: unit of all timestamps, in seconds.
        pts: (N,) int64, strictly increasing.
        order: key by which a frame is found: its ``pts``, or its ``count`` as it leaves the decoder if timestamps
            cannot be trusted.
        raw: (N,) int64, the timestamp that the decoder gives each counted frame, or ``NO_PTS``.
        key_pts, key_dts: (K,) int64, keyframes that can be sought.
        width, height: pixels, upright.
        truncated: the file ends before the stream does.
        doubts: reasons not to trust the simplest reading of the timestamps.
        damage: known missing or changed data.
        origin: time of the first frame, even if that one is lost.
        suspects: positions next to gaps in time that may be losses; decoding them decides.
        open_start: an H.264 stream begins with a keyframe whose followers may refer to frames before it.
        stateful: packets carry palettes or headers for all later ones, so decoding begins at the stream's start.
        pixel_aspect: width of a coded pixel over its height.
        transfer, tilt, clean_aperture: as in ``SourceFacts``.
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
    stateful: bool = False
    pixel_aspect: float = 1.0
    tilt: float | None = None
    clean_aperture: tuple[int, int] | None = None
    transfer: str | None = None

    NO_PTS = -(1 << 63)

    def __len__(self) -> int:
        return len(self.pts)

    @property
    def first(self) -> int:
        """Time of the first frame, lost or not, in units of ``time_base``."""
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
        """True if gaps between frames differ by more than rounding to the container's clock."""
        if len(self) < 3:
            return False
        gaps = np.diff(self.pts)
        usual = float(np.median(gaps))
        rounding = 1.0 if usual >= 5 else 0.0
        return bool(np.abs(gaps - usual).max() > rounding + 0.1 * usual)

    @property
    def container(self) -> str:
        """Short name of the container: the FFmpeg alias that equals the file's suffix, otherwise the first."""
        names = self.format.split(",")
        suffix = self.path.rsplit(".", 1)[-1].lower()
        return suffix if suffix in names else names[0].removesuffix("_pipe")


class NotDelivered(Exception):
    """A decoder could not deliver the frames exactly; another may. Never leaves vidspec.video.

    Attributes:
        damaged: the stream itself is broken there.
        position: of the first missing frame, if known.
    """

    def __init__(self, reason: str, *, damaged: bool = False, position: int | None = None):
        super().__init__(reason)
        self.reason = reason
        self.damaged = damaged
        self.position = position


class FrameDecoder(Protocol):
    """Delivers exact frames of an indexed file, or raises ``NotDelivered``; keeps nothing open afterwards."""

    name: str

    def frames(self, index: Index, wanted: Sequence[int], size: tuple[int, int], put: PutFrame) -> None:
        """Deliver each of ``wanted`` (increasing positions in ``index``), scaled to ``size`` (width, height)."""
        ...


def format_seconds(seconds: float) -> str:
    """Format ``seconds`` for a message: at most milliseconds, no trailing zeros."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + " s"


def check_seconds(name: str, value: float | None) -> None:
    """Raise UsageError unless ``value`` is None or a finite, non-negative number of seconds."""
    if value is not None and not (np.isfinite(value) and value >= 0):
        raise UsageError(f"{name} must be zero or more seconds, not {value}")
