"""Video captioning with large video-language models, accelerated by lossless speculative decoding.

``Captioner.from_pretrained("Qwen/Qwen2.5-VL-7B-Instruct").caption("clip.mp4")`` captions a clip; ``stream_text`` yields
its text, ``stream`` events, ``caption_many`` the captions of many. :func:`run` captions folders and data sets into
files, and resumes; :func:`train` makes a draft head from captions that a target wrote. ``vidspec.aio`` has a captioner
for asyncio. Importing the package loads neither torch nor transformers; the first use of :class:`Captioner` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec._version import __version__

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.errors import (
        ArgumentError,
        ClosedError,
        DescriptorError,
        DeviceError,
        GenerationError,
        LostOutputError,
        ModelError,
        OutputError,
        ProfileError,
        UsageError,
        VideoError,
        VidspecError,
    )
    from vidspec.events.events import (
        Event,
        Finished,
        InputsReleased,
        Opened,
        Prefilled,
        PrefillProgress,
        Restarted,
        Round,
    )
    from vidspec.events.record import Caption
    from vidspec.models.request import CaptionOptions
    from vidspec.runner import run
    from vidspec.training.train import train

__all__ = [
    "ArgumentError",
    "Caption",
    "CaptionOptions",
    "Captioner",
    "ClosedError",
    "DescriptorError",
    "DeviceError",
    "Event",
    "Finished",
    "GenerationError",
    "InputsReleased",
    "LostOutputError",
    "ModelError",
    "Opened",
    "OutputError",
    "PrefillProgress",
    "Prefilled",
    "ProfileError",
    "Restarted",
    "Round",
    "UsageError",
    "VideoError",
    "VidspecError",
    "__version__",
    "run",
    "train",
]

#: Module of each name, which is imported on first use; the names that end in Error are in ``vidspec.errors``.
_MODULES = {
    "Caption": "vidspec.events.record",
    "CaptionOptions": "vidspec.models.request",
    "Captioner": "vidspec.captioner",
    "run": "vidspec.runner",
    "train": "vidspec.training.train",
    **dict.fromkeys(
        ("Event", "Finished", "InputsReleased", "Opened", "PrefillProgress", "Prefilled", "Restarted", "Round"),
        "vidspec.events.events",
    ),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'vidspec' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES.get(name, "vidspec.errors")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
