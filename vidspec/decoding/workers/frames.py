"""Frames and sound of a clip in shared memory: written by the main process, copied by the draft's, then freed."""

from __future__ import annotations

import contextlib
import math
import os
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from vidspec.errors import GenerationError

__all__ = ["copy_frames", "release_frames", "share_frames"]

#: Linux's folder of shared memory. Writing beyond its size kills the process instead of raising.
FOLDER = "/dev/shm"


def share_frames(frames: np.ndarray, sound: np.ndarray | None = None) -> SharedMemory:
    """Return a block with ``frames``, (T, H, W, 3) uint8, followed by ``sound``, (S,) float32.

    It must be freed by :func:`release_frames`.

    Raises:
        GenerationError: there is not enough shared memory (kind ``memory``).
    """
    size = max(1, _frame_bytes(frames.shape) + (0 if sound is None else sound.nbytes))
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
    if sound is not None:
        np.ndarray(sound.shape, dtype=np.float32, buffer=block.buf, offset=_frame_bytes(frames.shape))[:] = sound
    return block


def release_frames(block: SharedMemory) -> None:
    """Free the memory, even if another process still reads it."""
    block.close()
    with contextlib.suppress(FileNotFoundError):
        block.unlink()


def copy_frames(name: str, shape: tuple[int, ...], samples: int | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """Copy the frames, and ``samples`` of sound, from the block ``name`` of another process, which frees it."""
    block = SharedMemory(name)
    try:
        frames: np.ndarray = np.ndarray(shape, dtype=np.uint8, buffer=block.buf).copy()
        if samples is None:
            return frames, None
        sound: np.ndarray = np.ndarray(
            (samples,), dtype=np.float32, buffer=block.buf, offset=_frame_bytes(shape)
        ).copy()
        return frames, sound
    finally:
        block.close()


def _frame_bytes(shape: tuple[int, ...]) -> int:
    """Return the bytes of the frames, padded to the alignment of float32."""
    return -(-math.prod(shape) // 4) * 4
