"""Video captioning with large video-language models, accelerated by lossless speculative decoding.

``Captioner.from_profile("vanilla-sd").caption("clip.mp4")`` captions a clip; ``stream`` yields events.
Importing the package loads neither torch nor transformers; the first use of :class:`Captioner` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec._version import __version__

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.events.record import Caption

__all__ = ["Caption", "Captioner", "__version__"]

_LAZY = {"Captioner": "vidspec.captioner", "Caption": "vidspec.events.record"}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'vidspec' has no attribute {name!r}")
