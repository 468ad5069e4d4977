"""Preprocessing and encoding of clips before their turn, in another thread or in the vision worker."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import cast
from weakref import WeakKeyDictionary

from vidspec import video
from vidspec.channel import Channel
from vidspec.engine.device import use_one_core
from vidspec.models.base import Pixels, VisionOutput
from vidspec.models.prompt import preprocess_clip
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.process import ChildEnded, can_fork, fork
from vidspec.video.base import Clip

#: Timeout of one clip in seconds, after which the process is killed.
PATIENCE = 120.0


def is_available(models: Sequence[VideoLanguageModel]) -> bool:
    """Return True if a vision worker can run: on Linux, with all models on the CPU and more than one core."""
    return (
        sys.platform == "linux"
        and all(model.device.type == "cpu" for model in models)
        and len(os.sched_getaffinity(0)) > 1
        and can_fork()
    )


class VisionWorker:
    """Process that encodes clips one at a time; thread-safe.

    Create it in the main thread, before other threads use the models.

    Args:
        models: models that encode the clips.
    """

    def __init__(self, models: Sequence[VideoLanguageModel]) -> None:
        self.process = fork(_encode_clips, tuple(models), threads=1)
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        """True if the process is running."""
        return self.process.alive

    def encode(self, clip: Clip) -> list[VisionOutput]:
        """Encode a clip with each model and return the outputs in their order.

        Raises:
            OSError: the process has ended or timed out.
            Exception: the error raised in the process.
        """
        with self._lock:
            try:
                self.process.send(clip)
                reply = self.process.receive(time.monotonic() + PATIENCE)
            except (ChildEnded, TimeoutError) as error:
                self.close()
                raise OSError("the process that encodes clips has ended") from error
        if isinstance(reply, Exception):
            try:
                raise reply
            finally:
                del reply  # its traceback refers to this frame: a cycle that keeps the clip
        return cast("list[VisionOutput]", reply)

    def close(self) -> None:
        """End the process; idempotent."""
        self.process.end()


def _encode_clips(channel: Channel, models: Sequence[VideoLanguageModel]) -> None:
    """Encode clips in the forked process."""
    while True:
        channel.send(_encode(channel.receive(), models))


def _encode(clip: Clip, models: Sequence[VideoLanguageModel]) -> list[VisionOutput] | Exception:
    try:
        return [model.encode(pixels) for model, pixels in zip(models, preprocess_clip(models, clip), strict=True)]
    except Exception as error:
        return error


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
