"""Vision worker: a process that preprocesses and encodes clips on a CPU, concurrently with the decoding loop.

A thread would contend with the loop for the interpreter lock at each of a vision tower's hundreds of torch operations.
The process is a fork, so it shares the models' weights without copying or loading them.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch

from vidspec.models.base import VisionOutput
from vidspec.models.forking import silent_tokenizers
from vidspec.models.video_language_model import VideoLanguageModel

if TYPE_CHECKING:
    from vidspec.video import Clip

__all__ = ["VisionWorker", "is_available"]

#: Timeout of one clip in seconds, after which the process is killed.
PATIENCE = 120.0
#: ``prctl`` option: signal sent to a process when its parent ends.
_PDEATHSIG = 1


def is_available(models: Sequence[VideoLanguageModel]) -> bool:
    """Return True if a vision worker can run: on Linux, with all models on the CPU and more than one core."""
    return (
        sys.platform == "linux"
        and all(model.device.type == "cpu" for model in models)
        and len(os.sched_getaffinity(0)) > 1
    )


class VisionWorker:
    """Process that encodes clips one at a time; thread-safe.

    Create it in the main thread, before other threads use the models.

    Args:
        models: models that encode the clips.
    """

    def __init__(self, models: Sequence[VideoLanguageModel]) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._lock = threading.Lock()
        self.process: Any = context.Process(
            target=_serve, args=(theirs, tuple(models)), name="vidspec-vision", daemon=True
        )
        with silent_tokenizers():
            self.process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        """True if the process is running."""
        return not self._connection.closed and bool(self.process.is_alive())

    def encode(self, clip: Clip) -> list[VisionOutput]:
        """Encode a clip with each model and return the outputs in their order.

        Raises:
            OSError: the process has ended or timed out.
            Exception: the error raised in the process.
        """
        with self._lock:
            watchdog = threading.Timer(PATIENCE, self.process.kill)  # SIGKILL also ends a stopped process
            watchdog.daemon = True
            watchdog.start()
            try:
                self._connection.send_bytes(pickle.dumps(clip, pickle.HIGHEST_PROTOCOL))
                reply = pickle.loads(self._connection.recv_bytes())  # of our own process
            except (OSError, EOFError) as error:
                self.close()
                raise OSError("the process that encodes clips has ended") from error
            finally:
                watchdog.cancel()
        if isinstance(reply, Exception):
            raise reply
        return reply  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process; idempotent."""
        self._connection.close()
        self.process.kill()
        self.process.join()


def _serve(connection: Connection, models: Sequence[VideoLanguageModel]) -> None:
    """Serve clips in the forked process until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles the terminal's signals
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    # Close the parent's files, some of them locked, so that they do not stay open after it ends.
    connection_fd, max_fds = connection.fileno(), os.sysconf("SC_OPEN_MAX")
    os.closerange(3, connection_fd)
    os.closerange(connection_fd + 1, max_fds)
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, OSError):
        while True:
            clip = pickle.loads(connection.recv_bytes())
            reply: list[VisionOutput] | Exception
            try:
                reply = [model.encode(model.preprocess(clip)) for model in models]
            except Exception as error:
                reply = error
            connection.send_bytes(pickle.dumps(reply, pickle.HIGHEST_PROTOCOL))
    os._exit(0)  # skip the parent's cleanup handlers
