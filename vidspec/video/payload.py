"""Detects overwritten bytes in compressed pictures: patterns that no encoder writes. Decodes nothing.

Failing storage leaves zeros and 0xFF. H.264 and HEVC escape zeros, and MPEG-4 has codes that never make as many.
Entropy coding leaves no long runs of either elsewhere, with exceptions that are accepted here: padding after a
picture, filler units, MPEG-4's unchanged blocks (a set bit each), VP8's modes. tests/video/sound_kinds.py
makes files with the longest such runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vidspec.errors import VideoError
from vidspec.video.gif import gif_broken

# Limit of pixels of an animation, whose pictures must all be composed on the way to a later one, however few bytes
# they have: 4,000 pictures of 1080p, or some seconds of a core.
ANIMATIONS = {"gif", "apng", "webp", "webp_anim"}
MAX_ANIMATED_PIXELS = 1 << 33
# Limit of their number: 27 minutes of 10 pictures a second.
MAX_ANIMATED_PICTURES = 1 << 14

CODECS = {"gif", "h264", "hevc", "mpeg4", "vp8", "vp9"}

# Bytes that no H.264 or HEVC unit contains, as they are escaped wherever they would occur.
_FORBIDDEN = re.compile(rb"\x00\x00(?:[\x00\x02]|\x03[^\x00-\x03])")
# In intact files, the longest run found is 13 bytes for H.264 and HEVC and 7 for VP8 and VP9.
_RUN = 32
_ONES, _ZEROS = b"\xff" * _RUN, bytes(_RUN)
# In an MPEG-4 intra picture at most 15 zero bits follow each other, and no block is all ones.
_INTRA_ONES = b"\xff" * 16


@dataclass(frozen=True)
class PictureInspector:
    """Checks the packets of one stream.

    Args:
        codec: by FFmpeg's name, of CODECS.
        pixels: of a picture.
        length_size: bytes of the length before each unit of H.264 or HEVC; 0 if start codes separate them.
    """

    codec: str
    pixels: int
    length_size: int = 0

    def broken(self, packet: bytes) -> bool:
        """Return True if no encoder can have written ``packet``."""
        if self.codec == "gif":
            return gif_broken(packet)
        if self.codec in ("h264", "hevc"):
            return self._units_broken(packet)
        if self.codec == "mpeg4":
            return any(self._vop_broken(unit) for unit in packet.split(b"\0\0\1")[1:] if unit[:1] == b"\xb6")
        body = (packet[_modes_end(packet) :] if self.codec == "vp8" else packet).rstrip(b"\0")
        return _ONES in body or _ZEROS in body

    def starts_open(self, packet: bytes) -> bool:
        """Return True if an H.264 keyframe is not an IDR picture: its followers may refer to pictures before it."""
        return self.codec == "h264" and all(unit and unit[0] & 31 != 5 for unit in self._units(packet))

    def _units(self, packet: bytes) -> Iterable[bytes]:
        return _units(packet, self.length_size) if self.length_size else packet.split(b"\0\0\1")[1:]

    def _units_broken(self, packet: bytes) -> bool:
        """Return True if units do not fill the packet, or a picture's unit contains forbidden bytes."""
        for unit in self._units(packet):
            if not unit or unit[0] & 0x80:
                return True
            of_picture = unit[0] >> 1 < 32 if self.codec == "hevc" else unit[0] & 31 in (1, 5)
            # Some writers pad a unit's end with zeros.
            if of_picture and (_FORBIDDEN.search(unit.rstrip(b"\0")) or self._ones_limit(unit) in unit):
                return True
        return False

    def _ones_limit(self, unit: bytes) -> bytes:
        """Return a run of 0xFF longer than a picture's unit holds: an unchanged block may be six set bits of H.264."""
        still = self.codec == "h264" and unit[0] & 31 == 1
        return b"\xff" * (_RUN + self.pixels * 6 // 2048) if still else _ONES

    def _vop_broken(self, unit: bytes) -> bool:
        body = unit.rstrip(b"\0").rstrip(b"\xff")
        if b"\0\0\0\0" in body:
            return True
        if unit[1:2] < b"\x40":
            return _INTRA_ONES in body
        return b"\xff" * (self.pixels // 2048 + 8) in body  # a bit for each 16 x 16 that stays as it is


def check_animation(path: str, count: int, width: int, height: int) -> None:
    """Refuse an animation that would take minutes to decode.

    Raises:
        VideoError: it has too many pictures, or too many pixels in all of them.
    """
    pixels = count * width * height
    if count > MAX_ANIMATED_PICTURES:
        excess = f"more than {MAX_ANIMATED_PICTURES:,} pictures"
    elif pixels > MAX_ANIMATED_PIXELS:
        excess = (
            f"{count:,} pictures of {width}x{height}, more than {MAX_ANIMATED_PIXELS / 1e9:.1f} billion pixels in all"
        )
    else:
        return
    raise VideoError(
        f"{path}: is an animation of {excess}", kind="unsupported", hint="ffmpeg -i IN OUT.mp4 makes a video of it"
    )


def length_size(codec: str, head: bytes) -> int:
    """Return the bytes of the length before each unit of an H.264 or HEVC packet; 0 if start codes separate them.

    ``head``: the codec's extradata in the container.
    """
    at = {"h264": 4, "hevc": 21}.get(codec)
    return (head[at] & 3) + 1 if at is not None and len(head) > at and head[0] == 1 else 0


def has_layers(codec: str, head: bytes) -> bool:
    """Return True for HEVC whose pictures marked as non-reference in their temporal layer may still be referred to."""
    return codec == "hevc" and not (len(head) > 21 and head[0] == 1 and head[21] >> 3 & 7 == 1)


def without_stuffing(packet: bytes, codec: str) -> bytes:
    """Return ``packet`` without rate stuffing, which strict decoders refuse; may be empty.

    Zeros after a picture of MPEG-1 or 2; packets of MPEG-4 without a picture.
    """
    if codec in ("mpeg1video", "mpeg2video") and packet.endswith(b"\0\0"):
        return packet.rstrip(b"\0")
    if codec == "mpeg4" and packet[:4] == b"\0\0\1\xc3" and b"\0\0\1\xb6" not in packet:
        return b""
    return packet


def _modes_end(packet: bytes) -> int:
    """Return the offset in a VP8 packet at which block modes end and coefficients begin."""
    head = int.from_bytes(packet[:3], "little")
    return (3 if head & 1 else 10) + (head >> 5)


def _units(data: bytes, length_size: int) -> Iterator[bytes]:
    """Yield the units of a packet, each preceded by its length; an empty one if a length is invalid."""
    at = 0
    while at < len(data):
        end = at + length_size + int.from_bytes(data[at : at + length_size], "big")
        yield data[at + length_size : end] if end <= len(data) else b""
        at = end
