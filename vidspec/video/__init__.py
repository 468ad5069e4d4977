"""Reads videos: exact frames with timestamps. Importing it loads neither numpy nor a decoder; using it does.

reading    the calls, read and read_at: path -> Clip
base       Clip, Index, the FrameDecoder protocol
opening    opens a file, or raises one error with the reason
packets    one pass over a file's packets; payload, gif: bytes that no encoder writes; damage: of containers
probing    the index of a file's frames
pictures   pictures from packets, damage found
decode_av, decode_decord, decode_hardware   the decoders behind ``base.FrameDecoder``
image      image files as videos of one frame
sound      the audio during a clip
sample     frame selection: pure arithmetic
resize     decoded pictures as upright RGB, scaled down if wanted
cutting    parts of a video as files of their own
progress   a counter that shows that reading goes on
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vidspec.events.events import SourceFacts
    from vidspec.video.base import Clip, FrameDecoder, Index
    from vidspec.video.probing import probe
    from vidspec.video.reading import read, read_at

__all__ = ["Clip", "FrameDecoder", "Index", "SourceFacts", "probe", "read", "read_at"]

_HOMES = {"probe": "probing", "read": "reading", "read_at": "reading"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"vidspec.video.{_HOMES.get(name, 'base')}"), name)
    globals()[name] = value
    return value
