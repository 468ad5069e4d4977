"""Preprocessing and encoding of clips before their turn, in another thread or in the vision worker."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

from vidspec import video
from vidspec.engine.device import use_one_core
from vidspec.models.base import Pixels, VisionOutput
from vidspec.models.prompt import preprocess_clip
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.vision_worker import VisionWorker, is_available

__all__ = ["VisionAhead"]


class VisionAhead:
    """Precomputed vision inputs and outputs of clips, each kept until it is taken or its clip is gone.

    Args:
        models: models that encode the clips.

    Attributes:
        has_feed: True if another thread than the main one prepares clips.
        worker: the vision worker, if it was started.
    """

    def __init__(self, models: Sequence[VideoLanguageModel]) -> None:
        self.models: Sequence[VideoLanguageModel] = models
        self.has_feed = False
        self.worker: VisionWorker | None = None
        self._ready: WeakKeyDictionary[video.Clip, dict[VideoLanguageModel, Pixels | VisionOutput]] = (
            WeakKeyDictionary()
        )

    def start_worker(self) -> None:
        """Start the vision worker if one can run, once."""
        if self.worker is None and self.models and is_available(self.models):
            self.worker = VisionWorker(self.models)

    def prepare(self, clip: video.Clip) -> int:
        """Preprocess a clip for all models; on a CPU also encode it. Return the bytes that are held for it."""
        if threading.current_thread() is not threading.main_thread():
            self.has_feed = True
            use_one_core()
        outputs: dict[VideoLanguageModel, Pixels | VisionOutput] = {}
        if self.worker is not None and self.worker.alive:
            with suppress(OSError):  # falls back to this process
                outputs.update(zip(self.models, self.worker.encode(clip), strict=True))
        if not outputs:
            for model, pixels in zip(self.models, preprocess_clip(self.models, clip), strict=True):
                outputs[model] = model.encode(pixels) if model.device.type == "cpu" else pixels
        self._ready[clip] = outputs
        return sum(output.nbytes for output in outputs.values())

    def take(self, clip: video.Clip) -> Mapping[VideoLanguageModel, Pixels | VisionOutput]:
        """Return what was prepared of a clip, once."""
        return self._ready.pop(clip, {})

    def end_feed(self) -> None:
        """Reset :attr:`has_feed`: no thread prepares clips any more."""
        self.has_feed = False

    def close(self) -> None:
        """End the vision worker, and release the models."""
        if self.worker is not None:
            self.worker.close()
        self.models = ()
        self._ready.clear()
