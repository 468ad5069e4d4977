"""A process that looks at clips for models on a CPU: preprocessing and vision tower, beside the passes of the text.

A thread would have to share the interpreter with the loop: both give it up and want it back with every operation of
torch, of which a vision tower has hundreds, and each waits for the other. The process is a fork: it has the models'
weights without a copy, and needs no time to load them.
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

from vidspec.models.base import VideoLanguageModel, VisionOutput
from vidspec.models.forking import silent_tokenizers

if TYPE_CHECKING:
    from vidspec.video import Clip

__all__ = ["VisionWorker", "is_available"]

#: Seconds that looking at one clip may take before the process counts as stuck.
PATIENCE = 120.0
#: Of ``prctl``: which signal a process gets when the one that made it ends.
_PDEATHSIG = 1


def is_available(models: Sequence[VideoLanguageModel]) -> bool:
    """Whether there can be one: on Linux, whose forks share memory, with all models on the CPU and a core to spare."""
    return (
        sys.platform == "linux"
        and all(model.device.type == "cpu" for model in models)
        and len(os.sched_getaffinity(0)) > 1
    )


class VisionWorker:
    """Looks at one clip after the other, in the order of asking; may be asked by several threads.

    To be made by the main thread, before there are threads that work on the models.

    Args:
        models: who see.
    """

    def __init__(self, models: Sequence[VideoLanguageModel]) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._asking = threading.Lock()
        self.process: Any = context.Process(
            target=_serve, args=(theirs, tuple(models)), name="vidspec-vision", daemon=True
        )
        with silent_tokenizers():
            self.process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self._connection.closed and bool(self.process.is_alive())

    def encode(self, clip: Clip) -> list[VisionOutput]:
        """What each of the models sees, in their order.

        Raises:
            OSError: the process has ended, or is stuck.
            Exception: what went wrong in it.
        """
        with self._asking:
            late = threading.Timer(PATIENCE, self.process.kill)  # or a stopped one would not even be told
            late.daemon = True
            late.start()
            try:
                self._connection.send_bytes(pickle.dumps(clip, pickle.HIGHEST_PROTOCOL))
                found = pickle.loads(self._connection.recv_bytes())  # of our own process
            except (OSError, EOFError) as error:
                self.close()
                raise OSError("the process that encodes clips has ended") from error
            finally:
                late.cancel()
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process; a second time does nothing."""
        self._connection.close()
        self.process.kill()
        self.process.join()


def _serve(connection: Connection, models: Sequence[VideoLanguageModel]) -> None:
    """The process: clips in, what is seen out, until nobody is there any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's signals are the other process's business
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    # Files of the other process, locked ones among them, are not to stay open when that ends.
    own, most = connection.fileno(), os.sysconf("SC_OPEN_MAX")
    os.closerange(3, own)
    os.closerange(own + 1, most)
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, OSError):
        while True:
            clip = pickle.loads(connection.recv_bytes())
            found: list[VisionOutput] | Exception
            try:
                found = [model.encode(model.preprocess(clip)) for model in models]
            except Exception as error:
                found = error
            connection.send_bytes(pickle.dumps(found, pickle.HIGHEST_PROTOCOL))
    os._exit(0)  # nothing of the other process is to be cleaned up here
