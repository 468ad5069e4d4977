"""Decodes with decord 0.6, for files on which it is exact, and checks the result.

decord returns wrong frames without an error, conceals damage, and takes its timestamps from packets rather than from
decoded frames. So besides count, size and timestamps, each frame is compared with PyAV's, which fails on damaged data.
decord turns pictures upright by itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from vidspec.errors import UsageError, VideoError, reason_of
from vidspec.video.base import Frame, Index, NotDelivered, PutFrame
from vidspec.video.decode_av import AvDecoder
from vidspec.video.progress import advance
from vidspec.video.resize import resized

if TYPE_CHECKING:
    import decord  # type: ignore[import-untyped]

# Formats on which decord 0.6.0 gave exact frames in every trial, in any order of access. On others it returned wrong
# frames without an error (MPEG-TS, MPEG-PS, FLV, AVI with B-frames) or none (AV1, GIF, still pictures).
_CONTAINERS = {"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"}
_CODECS = {"h264", "hevc", "mpeg4", "vp8", "vp9"}
# decord holds further pictures besides those it delivers: 4K clips take 1 GB more than with PyAV.
_MAX_PIXELS = 1 << 22

# Frames held twice at a time. A reader's memory grows with use, so it is closed as soon as all are delivered.
_BATCH = 8
_MAX_THREADS = 8
# Mean difference of 8-bit values between the two decoders' pictures: none in trials, while a picture one frame off
# in a moving scene differs by more. Different swscale versions may round differently.
_TOLERANCE = 2.0
# Step between compared rows and columns.
_STRIDE = 3


def is_available() -> bool:
    return _import_decord() is not None


def distrust_reason(index: Index) -> str | None:
    """Return the reason why decord 0.6.0 may return wrong frames of this file without an error; None if trusted."""
    if index.format not in _CONTAINERS:
        return f"decord is not exact in {index.container} files"
    if index.codec not in _CODECS:
        return f"decord is not known to be exact with {index.codec}"
    if index.truncated:
        return "the file is truncated"
    if index.turn.mirrored:
        return "decord ignores mirroring"
    if index.width * index.height > _MAX_PIXELS:
        return f"decord takes too much memory for frames of {index.width}x{index.height}"
    return index.doubts[0] if index.doubts else None


class DecordDecoder:
    """The decord decoder; see ``base.FrameDecoder``. Raises UsageError if decord is not installed."""

    name = "decord"

    def __init__(self) -> None:
        found = _import_decord()
        if found is None:
            raise UsageError("decord is not installed", hint="pip install decord, or use --decoder av or auto")
        self._decord = found

    def frames(self, index: Index, wanted: Sequence[int], size: tuple[int, int], put: PutFrame) -> None:
        """See ``base.FrameDecoder``.

        Raises VideoError for a file on which it is not exact, and NotDelivered when it fails or disagrees with the
        index or with PyAV; frames delivered before that must not be used.
        """
        if (why := distrust_reason(index)) is not None:
            raise VideoError(
                f"{index.path}: cannot be read exactly with decord: {why}",
                kind="unsupported",
                hint="use --decoder auto",
            )
        samples: dict[int, Frame] = {}
        full = (index.width, index.height)
        AvDecoder().frames(index, wanted, full, lambda at, frame: samples.update({at: _sample(frame)}))
        reader = None
        try:
            threads = min(_MAX_THREADS, os.cpu_count() or 1)
            reader = self._decord.VideoReader(os.path.abspath(index.path), num_threads=threads)
            _check_index(reader, index, wanted)
            for first in range(0, len(wanted), _BATCH):
                part = list(wanted[first : first + _BATCH])
                for position, frame in zip(part, _batch(reader, index, part), strict=True):
                    difference = np.abs(_sample(frame).astype(np.int16) - samples.pop(position))
                    if difference.mean() > _TOLERANCE:
                        raise NotDelivered("decord's frame is not PyAV's", position=position)
                    put(position, resized(frame, *size))
                    advance()
        except (NotDelivered, MemoryError):
            raise
        except Exception as error:  # decord raises DECORDError, RuntimeError, AssertionError and StopIteration
            raise NotDelivered(f"decord cannot decode it: {reason_of(error)[-120:]}") from None
        finally:
            del reader  # the last reference: frees the reader's buffers now, not when the model is running


def _check_index(reader: decord.VideoReader, index: Index, wanted: Sequence[int]) -> None:
    if len(reader) != len(index):
        raise NotDelivered(f"decord counts {len(reader)} frames, not {len(index)}")
    times = np.asarray(reader.get_frame_timestamp(list(wanted)), np.float64)[:, 0]
    expected = index.times[np.asarray(wanted)]
    # decord keeps float32 seconds.
    if not (np.abs(times - expected) <= float(index.time_base) + 1e-6 * expected + 1e-4).all():
        raise NotDelivered("decord's timestamps are not the file's")


def _batch(reader: decord.VideoReader, index: Index, part: list[int]) -> Frame:
    """Return the frames at these positions, (n, height, width, 3)."""
    batch = reader.get_batch(part)
    frames: Frame = np.asarray(batch.asnumpy() if hasattr(batch, "asnumpy") else batch, np.uint8)
    if frames.shape != (len(part), index.height, index.width, 3):
        raise NotDelivered(f"decord's frames have the shape {frames.shape}", position=part[0])
    return frames


def _sample(frame: Frame) -> Frame:
    return np.ascontiguousarray(frame[::_STRIDE, ::_STRIDE])


def _import_decord() -> ModuleType | None:
    try:
        import decord
    except (ImportError, OSError, RuntimeError):
        return None
    decord.logging.set_level(decord.logging.QUIET)
    found: ModuleType = decord
    return found
