"""Vision worker: a process that preprocesses and encodes clips on a CPU, concurrently with the decoding loop.

A thread would contend with the loop for the interpreter lock at each of a vision tower's hundreds of torch operations.
The process is a fork, so it shares the models' weights without copying or loading them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from vidspec.models.base import VisionOutput
from vidspec.models.prompt import preprocess_clip
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.process import Channel, ChildEnded, can_fork, fork

if TYPE_CHECKING:
    from vidspec.video import Clip

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
