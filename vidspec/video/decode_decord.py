"""Decodes with decord 0.6, where ``probing.decord_doubt`` has none, and checks what it can of the result.

decord returns wrong frames without an error, conceals damage, and takes its timestamps from packets rather than from
what it decoded. So besides count, size and timestamps, each frame is compared with the one that PyAV decodes, which
fails where data are damaged. decord turns pictures upright by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from vidspec.errors import UsageError
from vidspec.video.base import Frame, Index, NotDelivered
from vidspec.video.decode_av import AvDecoder, upright

__all__ = ["DecordDecoder", "available"]

# Frames held twice at a time; a reader's own memory grows with its use, so it is closed as soon as all are out.
_BATCH = 8
_MOST_THREADS = 8
# Mean difference of 8-bit values between the two decoders' pictures: none in trials, while a picture one frame off
# in a moving scene differs by more. Different swscale versions may round differently.
_TOLERANCE = 2.0
# Every so many rows and columns are compared.
_STRIDE = 3


def available() -> bool:
    """Whether decord can be imported here."""
    return _import_decord() is not None


class DecordDecoder:
    """The decord decoder; see ``base.Decoder``. Raises UsageError when made without decord installed."""

    name = "decord"

    def __init__(self) -> None:
        self._decord = _import_decord()
        if self._decord is None:
            raise UsageError("decord is not installed", hint="pip install decord, or use the decoder 'av' or 'auto'")

    def frames(self, index: Index, wanted: Sequence[int]) -> Iterator[tuple[int, Frame]]:
        """Yields (position, upright frame) for each of ``wanted`` (increasing positions in ``index``).

        Raises NotDelivered when decord fails or disagrees with the index or with PyAV; frames yielded before that
        must not be used.
        """
        sound = AvDecoder().pictures(index, wanted)
        reader = None
        try:
            try:
                threads = min(_MOST_THREADS, os.cpu_count() or 1)
                reader = self._decord.VideoReader(os.path.abspath(index.path), num_threads=threads)
                _check_index(reader, index, wanted)
            except NotDelivered:
                raise
            except Exception as error:  # decord raises DECORDError, RuntimeError, AssertionError and StopIteration
                raise NotDelivered(f"decord cannot open it: {_short(error)}") from None
            for first in range(0, len(wanted), _BATCH):
                part = list(wanted[first : first + _BATCH])
                try:
                    batch = reader.get_batch(part)
                    pictures = batch.asnumpy() if hasattr(batch, "asnumpy") else np.asarray(batch)
                except Exception as error:
                    raise NotDelivered(f"decord cannot decode it: {_short(error)}", position=part[0]) from None
                if pictures.shape != (len(part), index.height, index.width, 3):
                    raise NotDelivered(f"decord's frames have the shape {pictures.shape}", position=part[0])
                for (position, exact), picture in zip(islice(sound, len(part)), pictures, strict=True):
                    if not _alike(picture, upright(index, exact)):
                        raise NotDelivered("decord's frame is not PyAV's", position=position)
                    yield position, picture
        finally:
            sound.close()
            del reader  # the last reference: frees the reader's buffers now, not when the model is running


def _import_decord() -> Any:
    try:
        import decord  # type: ignore[import-untyped]
    except (ImportError, OSError, RuntimeError):
        return None
    decord.logging.set_level(decord.logging.QUIET)
    return decord


def _check_index(reader: Any, index: Index, wanted: Sequence[int]) -> None:
    if len(reader) != len(index):
        raise NotDelivered(f"decord counts {len(reader)} frames, not {len(index)}")
    times = np.asarray(reader.get_frame_timestamp(list(wanted)), np.float64)[:, 0]
    expected = index.times[np.asarray(wanted)]
    # decord keeps float32 seconds.
    if not (np.abs(times - expected) <= float(index.time_base) + 1e-6 * expected + 1e-4).all():
        raise NotDelivered("decord's timestamps are not the file's")


def _alike(one: Frame, other: Frame) -> bool:
    sample = slice(None, None, _STRIDE)
    return float(np.abs(one[sample, sample].astype(np.int16) - other[sample, sample]).mean()) <= _TOLERANCE


def _short(error: Exception) -> str:
    return str(error).split("\n")[0][-120:] or type(error).__name__
