"""Decodes the audio of a part of a video with PyAV: mono, 16 kHz, aligned with the frames.

FFmpeg's decoders either refuse a damaged packet or decode it to something; only the former is detected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import cast

import av
import numpy as np
from numpy.typing import NDArray

from vidspec.errors import VideoError
from vidspec.video.base import Index, format_seconds
from vidspec.video.opening import opened, packets_of

#: Samples per second.
RATE = 16_000
#: Gap in seconds between an audio frame's timestamp and the end of the previous frame that counts as a jump in time.
_SLACK = 0.05
#: Seconds decoded ahead of the part, for codecs whose frames depend on earlier ones.
_PREROLL_S = 1.0


def read_sound(
    index: Index, start: float, end: float, *, allow_damaged: bool = False
) -> tuple[NDArray[np.float32] | None, str | None]:
    """Return the audio of a file's best audio stream between two times; silence in gaps.

    The audio of a truncated file ends there. A stream may begin with frames that depend on missing ones.

    Args:
        index: of the file's frames.
        start, end: seconds since the first frame.
        allow_damaged: leave out what cannot be decoded.

    Returns:
        (S,) float32 from ``start`` to ``end``, or to the earlier end of the stream, None without a sample there; and a
        description of the damage, or None.

    Raises:
        VideoError: it cannot be decoded: kind ``damaged`` unless damage is allowed, ``unsupported`` without a decoder.
    """
    if end <= start:
        return None, None
    found = _read(index, start, end, seek=True) if start > _PREROLL_S else None
    track, lost = found or _read(index, start, end) or (None, [])
    if track is None or not lost or index.truncated:
        return None if track is None else track.samples, None
    more = f" and {len(lost) - 1} times more" if len(lost) > 1 else ""
    what = f"its sound cannot be decoded at {format_seconds(lost[0])}{more}"
    if not allow_damaged:
        raise VideoError(
            f"{index.path}: is damaged: {what}",
            kind="damaged",
            hint="--no-audio captions the frames alone; --allow-damaged keeps the intact sound",
        )
    return track.samples, what


def _read(index: Index, start: float, end: float, *, seek: bool = False) -> tuple[_Track, list[float]] | None:
    """Return the decoded samples and the times of lost frames; None without a stream, or if the seek overshot."""
    origin = float(index.first * index.time_base)
    with opened(index.path) as container:
        stream = cast("av.AudioStream | None", container.streams.best("audio"))
        if stream is None:
            return None
        if stream.codec_context is None:
            raise VideoError(
                f"{index.path}: its sound is of a kind that FFmpeg does not decode here",
                kind="unsupported",
                hint="--no-audio captions the frames alone",
            )
        if seek:
            try:
                container.seek(int((origin + start - _PREROLL_S) / Fraction(stream.time_base or 1)), stream=stream)
            except (av.error.FFmpegError, OSError):
                return None
        track, began = _Track(start, end), False
        lost: list[float] = []
        for time, frame in _frames(container, stream):
            at = None if time is None else time - origin
            if at is not None and at >= end:
                break
            if frame is None:
                if at is not None and at >= start:
                    lost.append(at)
                continue
            if not began:
                if seek and (at is None or at > start):
                    return None
                began, lost = True, []
            track.add(at, frame)
    return track, lost


def _frames(
    container: av.container.InputContainer, stream: av.AudioStream
) -> Iterator[tuple[float | None, av.AudioFrame | None]]:
    """Yield time (on the file's clock) and frame, in order; None for a frame that cannot be decoded."""
    packets, time, base = packets_of(container, stream), None, Fraction(stream.time_base or 1)
    while True:
        try:
            packet = next(packets, None)
        except (av.error.FFmpegError, OSError):  # a failed read ends the file here
            yield time, None
            return
        if packet is None:
            return
        if packet.pts is not None:
            time = float(packet.pts * base)
        try:
            if packet.is_corrupt and packet.size:
                yield time, None
                continue
            frames = stream.codec_context.decode(packet if packet.size else None)
        except MemoryError:
            raise
        except av.error.EOFError:
            return
        except av.error.FFmpegError:
            yield time, None
            continue
        for frame in frames:
            yield (None if frame.pts is None else float(frame.pts * (frame.time_base or base))), frame


class _Track:
    """Samples of a time range, placed by the timestamps of their frames."""

    def __init__(self, start: float, end: float) -> None:
        self._start, self._next = start, start
        self._samples = np.zeros(round((end - start) * RATE), np.float32)
        self._at = self._filled = 0
        self._kind: tuple[str, str, int] | None = None
        self._resampler: av.AudioResampler | None = None

    @property
    def samples(self) -> NDArray[np.float32] | None:
        """Samples up to the last one decoded."""
        self._flush()
        return self._samples[: self._filled].copy() if self._filled else None

    def add(self, time: float | None, frame: av.AudioFrame) -> None:
        """Add a frame that begins at ``time``, None for the end of the previous one."""
        kind = (frame.format.name, frame.layout.name, frame.sample_rate)
        elsewhere = time is not None and abs(time - self._next) > _SLACK
        if kind != self._kind or elsewhere:
            self._flush()
            self._next = self._next if time is None else time
            self._at = round((self._next - self._start) * RATE)
            self._kind, self._resampler = kind, av.AudioResampler("fltp", frame.layout, RATE)
        assert self._resampler is not None
        self._next += frame.samples / frame.sample_rate
        frame.pts = None  # only its samples count
        self._append(self._resampler.resample(frame))

    def _flush(self) -> None:
        if self._resampler is not None:
            self._append(self._resampler.resample(None))
        self._resampler = self._kind = None

    def _append(self, resampled: Iterable[av.AudioFrame]) -> None:
        for made in resampled:
            samples = made.to_ndarray().mean(0)  # FFmpeg's own downmix sums, which is louder than the channels
            low, high = max(0, self._at), min(len(self._samples), self._at + len(samples))
            if high > low:
                self._samples[low:high] = samples[low - self._at : high - self._at]
                self._filled = max(self._filled, high)
            self._at += len(samples)
