"""A clip's frames in shared memory: written by the main process, copied out by the draft's, and gone."""

from __future__ import annotations

import contextlib
import os
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from vidspec.errors import GenerationError

__all__ = ["copied", "drop", "share"]

#: Where Linux keeps shared memory. What is written beyond its size kills the process instead of raising.
FOLDER = "/dev/shm"


def share(frames: np.ndarray) -> SharedMemory:
    """A block that holds ``frames``, (T, H, W, 3) uint8; to be given to :func:`drop` in the end.

    Raises:
        GenerationError: there is not enough shared memory (kind ``memory``).
    """
    size = max(1, frames.nbytes)
    if os.path.isdir(FOLDER):
        state = os.statvfs(FOLDER)
        if size > state.f_bavail * state.f_frsize:
            raise GenerationError(
                f"the clip's frames do not fit into {FOLDER}: {size / 2**20:.0f} MiB are needed, "
                f"{state.f_bavail * state.f_frsize / 2**20:.0f} are free",
                hint="more shared memory (docker run --shm-size), fewer --frames or a smaller --max-pixels",
                kind="memory",
            )
    block = SharedMemory(create=True, size=size)
    np.ndarray(frames.shape, dtype=np.uint8, buffer=block.buf)[:] = frames
    return block


def drop(block: SharedMemory) -> None:
    """Give the memory back, whoever still reads it."""
    block.close()
    with contextlib.suppress(FileNotFoundError):
        block.unlink()


def copied(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The frames in the block ``name`` of another process; that process drops it."""
    block = SharedMemory(name)
    try:
        shared: np.ndarray = np.ndarray(shape, dtype=np.uint8, buffer=block.buf)
        frames: np.ndarray = np.array(shared)
        del shared
    finally:
        block.close()
    return frames
