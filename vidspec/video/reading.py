"""Reads selected frames of a video file: the index first, then the frames, each decoded once.

``sample`` selects the frames; ``decode_av``, ``decode_decord`` and ``decode_hardware`` decode them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from vidspec import memory
from vidspec.channel import has_no_descriptor
from vidspec.errors import DescriptorError, UsageError, VideoError
from vidspec.events.events import SourceFacts
from vidspec.video import sample, sound
from vidspec.video.base import (
    Clip,
    Frame,
    FrameDecoder,
    Index,
    NotDelivered,
    check_seconds,
    format_seconds,
)
from vidspec.video.decode_av import AvDecoder
from vidspec.video.decode_decord import DecordDecoder
from vidspec.video.decode_hardware import DEVICES, HardwareDecoder
from vidspec.video.image import ImageDecoder, is_image
from vidspec.video.probing import make_index, too_large, with_index
from vidspec.video.resize import fitted

DECODERS = ("auto", "decord", "av", *DEVICES)
SEEKS = ("exact", "keyframes")

#: Bytes for the frames of a clip: 64 of 1080p fit unscaled, larger ones are scaled down.
MOST_BYTES = 400 << 20
# ... but not below this many pixels, about what models use, as long as there is memory.
_MIN_PIXELS = 336 * 336
# More than any model uses (512 frames of 1080p are 3 GB); without a limit a mistyped rate would exhaust the machine.
_MAX_BYTES = 8 << 30

_DAMAGED_HINT = "--allow-damaged captions what is there; or leave the damage out by --start and --end"

CheckFrameCount: TypeAlias = Callable[[int, int, int], None]
"""Called before decoding with the number of frames, their height and their width; raises to refuse."""


def read(
    path: str | os.PathLike[str],
    *,
    frames: int | None = None,
    fps: float | None = None,
    start: float | None = None,
    end: float | None = None,
    max_pixels: int | None = None,
    decoder: str = "auto",
    seek: str = "exact",
    allow_damaged: bool = False,
    sound: float | None = None,
    gpu: int | None = None,
    most_bytes: int | None = None,
    check: CheckFrameCount | None = None,
    admit: Callable[[int], None] | None = None,
    allocate: Callable[[tuple[int, int, int, int]], NDArray[np.uint8]] | None = None,
) -> Clip:
    """Read exact, upright frames of the video at ``path`` with their timestamps; an image file has one.

    Args:
        path: a regular file.
        frames: number of frames, spread evenly (``linspace(0, n - 1, frames)``, rounded) over the n frames whose
            timestamps lie in [start, end]; all n if there are no more. 32 if neither it nor ``fps`` is given. If the
            frame rate varies, they are spread over the time instead: the frame on screen at each moment.
        fps: the frame on screen at each of start, start + 1/fps, ... before end; repeated while it stays on screen.
        start, end: seconds since the first frame of the stream; by default the whole stream.
        max_pixels: larger frames (height x width) are scaled down to it, aspect kept, antialiased.
        decoder: ``av`` (PyAV), ``decord``, ``nvdec``, ``vaapi`` or ``videotoolbox`` (PyAV on hardware), or ``auto``:
            the cheapest that is exact and detects damage, which is PyAV in software for every file.
        seek: ``keyframes`` replaces each frame by the keyframe nearest in time, each once unless ``fps`` is given, and
            decodes no other; if a file's timestamps do not order its frames, it acts as ``exact``.
        allow_damaged: read the intact frames of a damaged file, in their places in time, by PyAV; the clip's
            ``facts.damage`` lists the damage.
        sound: also read this many seconds of audio at most, from the first frame to the end of the selected part. A
            file without audio is silent; damage to it counts like damage to frames, but is only found on the way.
        gpu: number of the GPU that ``nvdec`` decodes on; the first by default.
        most_bytes: frames that would take more are scaled down as by ``max_pixels``, but to no fewer pixels than 336 x
            336; full-size pictures held during scaling count. By default nothing is scaled for it.
        check: see ``CheckFrameCount``.
        admit: called with the pixels of a picture before the wanted ones are decoded; may wait until memory is free.
        allocate: returns the array (N, H, W, 3) that frames are written to; it is the clip's own unless damage costs
            some.

    Raises:
        UsageError: invalid arguments.
        VideoError: the file does not give these frames exactly; a frame is never replaced by another. A damaged file
            can be read if ``start`` and ``end`` exclude the damage.
    """
    wanted = _FrameSelection(
        frames,
        fps,
        start,
        end,
        max_pixels,
        decoder,
        seek,
        allow_damaged,
        sound=sound,
        gpu=gpu,
        most_bytes=most_bytes,
        check=check,
        admit=admit,
        allocate=allocate,
    )
    return _read(path, wanted)


def read_at(
    path: str | os.PathLike[str],
    times: Sequence[float],
    *,
    max_pixels: int | None = None,
    decoder: str = "auto",
    allow_damaged: bool = False,
) -> Clip:
    """Read the frames on screen at ``times``, such as some of another clip's ``timestamps``.

    Args:
        times: seconds since the first frame of the stream, increasing, at least one. For the rest see :func:`read`.
    """
    if not len(times) or any(later < earlier for earlier, later in pairwise(times)):
        raise UsageError("times must be given, and in order")
    for time in (times[0], times[-1]):
        check_seconds("times", time)
    wanted = _FrameSelection(
        None, None, None, None, max_pixels, decoder, allow_damaged=allow_damaged, times=tuple(times)
    )
    return _read(path, wanted)


@dataclass(frozen=True)
class _FrameSelection:
    frames: int | None
    fps: float | None
    start: float | None
    end: float | None
    max_pixels: int | None
    decoder: str = "auto"
    seek: str = "exact"
    allow_damaged: bool = False
    times: tuple[float, ...] = ()
    sound: float | None = None
    gpu: int | None = None
    most_bytes: int | None = None
    check: CheckFrameCount | None = None
    admit: Callable[[int], None] | None = None
    allocate: Callable[[tuple[int, int, int, int]], NDArray[np.uint8]] | None = None

    def __post_init__(self) -> None:
        if self.frames is not None and self.fps is not None:
            raise UsageError("frames and fps exclude each other", hint="give one of them")
        if self.frames is not None and self.frames < 1:
            raise UsageError(f"frames must be at least 1, not {self.frames}")
        if self.fps is not None and not (math.isfinite(self.fps) and self.fps > 0):
            raise UsageError(f"fps must be more than 0, not {self.fps}")
        check_seconds("start", self.start)
        check_seconds("end", self.end)
        start = self.start or 0.0
        if self.end is not None and self.end <= start:
            raise UsageError(f"end ({format_seconds(self.end)}) must be later than start ({format_seconds(start)})")
        if self.max_pixels is not None and self.max_pixels < 1:
            raise UsageError(f"max_pixels must be at least 1, not {self.max_pixels}")
        if self.decoder not in DECODERS:
            raise UsageError(f"there is no decoder {self.decoder!r}", hint="take one of " + ", ".join(DECODERS))
        if self.seek not in SEEKS:
            raise UsageError(f"there is no way to seek {self.seek!r}", hint="take one of " + ", ".join(SEEKS))
        if self.decoder in DEVICES and self.allow_damaged:
            raise UsageError(
                f"the decoder {self.decoder!r} cannot tell which frames are whole", hint="use --decoder av"
            )


def _read(path: str | os.PathLike[str], wanted: _FrameSelection) -> Clip:
    decoder = _decoder(wanted)
    try:
        return with_index(
            path,
            make_index,
            lambda index: _decode_clip(ImageDecoder() if is_image(index) else decoder, index, wanted),
            _undelivered_error,
            again=wanted.decoder != "decord",
        )
    except MemoryError:
        raise too_large(path, "its frames") from None
    except OSError as error:
        if has_no_descriptor(error):
            raise DescriptorError.of_clip(path) from None
        raise


def _decoder(wanted: _FrameSelection) -> FrameDecoder:
    """Return the requested decoder; UsageError if it is unavailable."""
    if wanted.allow_damaged or wanted.decoder in ("auto", "av"):
        return AvDecoder()
    return DecordDecoder() if wanted.decoder == "decord" else HardwareDecoder(wanted.decoder, wanted.gpu)


def _with_sound(index: Index, clip: Clip, wanted: _FrameSelection) -> Clip:
    if wanted.sound is None or is_image(index):
        return clip
    begin = max(wanted.start or 0.0, float(clip.timestamps[0]))
    end = min(index.duration_s, index.duration_s if wanted.end is None else wanted.end, begin + wanted.sound)
    samples, damage = sound.read_sound(index, begin, end, allow_damaged=wanted.allow_damaged)
    facts = replace(clip.facts, damage=(*clip.facts.damage, damage)) if damage else clip.facts
    return replace(clip, facts=facts, sound=samples)


def _positions(index: Index, wanted: _FrameSelection) -> tuple[NDArray[np.int64], float | None]:
    """Return the positions of the wanted frames in ``index``, increasing, and the clip's ``interval``."""
    if wanted.times:
        _require_undamaged(index, wanted, wanted.times[0], wanted.times[-1])
        _check_count(index, len(wanted.times), wanted)
        # Half a microsecond of tolerance for timestamps rounded in a record.
        found = np.searchsorted(index.times, np.asarray(wanted.times) + 5e-7, side="right") - 1
        return np.clip(found, 0, len(index) - 1).astype(np.int64), None
    start, end = wanted.start, wanted.end
    readable = format_seconds(index.duration_s)
    if index.truncated and not wanted.allow_damaged and (end is None or end > index.duration_s):
        usable = math.floor(index.times[-1] * 100) / 100
        raise VideoError(
            f"{index.path}: is truncated: only its first {readable} can be read",
            kind="truncated",
            hint=f"set --end to {usable:g} or less to caption that part" if usable > (start or 0.0) else None,
        )
    _require_undamaged(index, wanted, start, end)
    slack = min(float(index.time_base) / 2, 0.0005)
    interval = None
    if wanted.fps is not None:
        count = sample.ticks(wanted.fps, index.duration_s, start, end, slack=slack)
        if not count and not start:
            count = 1  # a single picture of no duration
        _check_count(index, count, wanted)
        positions = sample.shown_at(index.times, wanted.fps, start, count, slack=slack)
    else:
        low, high = sample.within(index.times, index.duration_s, start, end, slack=slack)
        count = min(high - low, wanted.frames or sample.DEFAULT_FRAMES)
        _check_count(index, count, wanted)
        positions = np.arange(low, low + count)
        if index.variable_fps and count < high - low:
            positions = low + sample.uniform_in_time(index.times[low:high], count)
        elif count:
            positions = low + sample.uniform(high - low, count)
        if count and index.fps:
            interval = (float(index.times[high - 1] - index.times[low]) + 1 / index.fps) / count
    if not len(positions):
        raise VideoError(
            f"{index.path}: has no frame at {format_seconds(start or 0.0)} or later: it lasts {readable}", kind="range"
        )
    if wanted.seek == "keyframes" and index.order == "pts":
        found = sample.nearest(index.times, np.flatnonzero(np.isin(index.pts, index.key_pts)), positions)
        return (found if wanted.fps is not None else np.unique(found)), None
    return positions, interval


def _require_undamaged(index: Index, wanted: _FrameSelection, start: float | None, end: float | None) -> None:
    found = [damage for damage in index.damage if damage.affects(start, end)]
    if not found or wanted.allow_damaged:
        return
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    raise VideoError(
        f"{index.path}: is damaged: {found[0].what}{more}", kind="damaged", hint=found[0].hint or _DAMAGED_HINT
    )


def _size(index: Index, count: int, wanted: _FrameSelection) -> tuple[int, int]:
    most = [] if wanted.max_pixels is None else [wanted.max_pixels]
    if wanted.most_bytes is not None and count:
        # Two full-size copies exist of the picture being scaled: as decoded, and upright.
        room = max(wanted.most_bytes // 4, wanted.most_bytes - 2 * 3 * index.width * index.height)
        most.append(max(_MIN_PIXELS, room // (3 * count)))
    return fitted(index.width, index.height, min(most, default=None))


def _check_count(index: Index, count: int, wanted: _FrameSelection) -> None:
    """Refuse too many frames, before even a list of them is made."""
    width, height = _size(index, count, wanted)
    if wanted.check is not None and count:
        wanted.check(count, height, width)
    free = memory.available_memory()
    most = _MAX_BYTES if free is None else min(_MAX_BYTES, free // 2)
    if count * width * height * 3 > most:
        raise UsageError(
            f"{index.path}: {count} frames of {width}x{height} take {count * width * height * 3 / 2**30:.1f} GiB, "
            f"more than the {most / 2**30:.1f} that frames may take",
            hint="take fewer --frames, a lower --fps or a smaller --max-pixels",
        )


def _decode_clip(decoder: FrameDecoder, index: Index, wanted: _FrameSelection) -> Clip:
    """Return the wanted frames, each decoded once and written to its places as it arrives."""
    positions, interval = _positions(index, wanted)
    width, height = size = _size(index, len(positions), wanted)
    if wanted.admit is not None:
        wanted.admit(index.width * index.height)
    damage = [one.what for one in index.damage]
    suspects = [position for position in index.suspects if positions[0] <= position <= positions[-1]]
    if suspects:
        try:
            AvDecoder().frames(index, suspects, fitted(index.width, index.height, 1), lambda position, frame: None)
        except NotDelivered as failure:
            if not wanted.allow_damaged:
                raise
            lost = index.times[suspects[0] if failure.position is None else failure.position]
            damage.append(f"frames are missing or changed near {format_seconds(float(lost))}")
    shape = (len(positions), height, width, 3)
    pictures = np.empty(shape, np.uint8) if wanted.allocate is None else wanted.allocate(shape)
    whole = np.zeros(len(positions), bool)
    once, first_rows, repeats = np.unique(positions, return_index=True, return_counts=True)

    def put(position: int, frame: Frame) -> None:
        number = int(np.searchsorted(once, position))
        rows = slice(first_rows[number], first_rows[number] + repeats[number])
        pictures[rows], whole[rows] = frame, True

    try:
        decoder.frames(index, once.tolist(), size, put)
    except NotDelivered as failure:
        if not (wanted.allow_damaged and failure.damaged):
            raise
        whole[:] = False
        if not (intact := AvDecoder().intact(index, once.tolist())):
            raise NotDelivered("none of its frames is whole", damaged=True, position=int(positions[0])) from None
        AvDecoder().frames(index, intact, size, put)
    facts = SourceFacts(
        path=os.path.abspath(index.path),
        duration_s=index.duration_s,
        width=index.width,
        height=index.height,
        codec=index.codec,
        container=index.container,
        fps=index.fps,
        variable_fps=index.variable_fps,
        rotation=index.turn.degrees,
        frame_count=len(index),
        decoder=decoder.name,
        pixel_aspect=None if index.pixel_aspect == 1.0 else round(index.pixel_aspect, 6),
        transfer=index.transfer,
        tilt=index.tilt,
        clean_aperture=index.clean_aperture,
        damage=(*damage, *_missing(index, index.times[positions[~whole]])) if wanted.allow_damaged else (),
    )
    if whole.all():
        clip = Clip(pictures, index.times[positions], facts, interval=interval)
    else:
        clip = Clip(pictures[whole], index.times[positions[whole]], facts)
    return _with_sound(index, clip, wanted)


def _missing(index: Index, undelivered: NDArray[np.float64]) -> list[str]:
    """Return a line each for a missing end of the file, and for undecodable frames."""
    lines = []
    if index.truncated:
        lines.append(f"the end is missing: only the first {format_seconds(index.duration_s)} can be read")
    if len(undelivered):
        first, last = (format_seconds(float(time)) for time in (undelivered[0], undelivered[-1]))
        lines.append(f"{len(undelivered)} of the frames from {first} to {last} could not be decoded exactly")
    return lines


def _undelivered_error(index: Index, failure: NotDelivered) -> VideoError:
    where = "" if failure.position is None else f" at {format_seconds(float(index.times[failure.position]))}"
    if failure.damaged:
        return VideoError(
            f"{index.path}: is damaged: the frame{where} cannot be decoded exactly",
            kind="damaged",
            hint=_DAMAGED_HINT,
        )
    return VideoError(
        f"{index.path}: the frame{where} cannot be decoded exactly: {failure.reason}",
        kind="unsupported",
        hint="use --decoder auto",
    )
