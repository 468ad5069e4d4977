"""Pipe between a parent and its child process: any messages, with arrays and tensors in shared memory."""

from __future__ import annotations

import errno
import io
import math
import mmap
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

#: Bytes of an array above which it travels in shared memory instead of the pipe.
SHARED_BYTES = 1 << 16
#: Most arrays of a message in shared memory; the kernel passes at most 253 descriptors at once.
MOST_BLOCKS = 250
#: Seconds between heartbeats.
HEARTBEAT_S = 0.2


def has_no_descriptor(error: BaseException) -> bool:
    """Return True if an error is that this process, or the machine, may open no further file."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


class SharedBlock(mmap.mmap):
    """Memory that other processes can map; freed by the kernel with its last mapping or descriptor."""

    descriptor: int

    @classmethod
    def create(cls, size: int) -> SharedBlock | None:
        """Return a block of ``size`` bytes; None for no bytes, or without anonymous shared memory in the system."""
        if not size or (descriptor := _memory_file()) is None:
            return None
        try:
            os.ftruncate(descriptor, size)
            return cls.attach(descriptor)
        except OSError:
            os.close(descriptor)
            return None

    @classmethod
    def attach(cls, descriptor: int) -> SharedBlock:
        """Map the memory of a descriptor, which then belongs to the block."""
        block = cls(descriptor, os.fstat(descriptor).st_size)
        block.descriptor = descriptor
        return block

    @classmethod
    def holding(cls, view: memoryview) -> SharedBlock | None:
        """Return the block that ``view`` spans, if there is one."""
        owner: object = view.obj
        while owner is not None and not isinstance(owner, cls):
            owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
        return owner if owner is not None and len(owner) == view.nbytes else None

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self.descriptor)


class Channel:
    """One end of the pipe between a parent and a child.

    Large arrays and tensors are copied once, those in a :class:`SharedBlock` not at all: both ends then see what one
    writes to them.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection, self._sending = connection, threading.Lock()

    def send(self, message: object) -> None:
        """Send a message; callable from any thread.

        Raises:
            OSError: the other end is gone.
        """
        with ExitStack() as copies:
            descriptors: list[int] = []

            def is_inline(buffer: pickle.PickleBuffer) -> bool:
                view = buffer.raw()
                if view.nbytes < SHARED_BYTES or len(descriptors) == MOST_BLOCKS:
                    return True
                if (block := SharedBlock.holding(view)) is not None:
                    descriptors.append(block.descriptor)
                    return False
                if (copy := _copied(view)) is None:
                    return True
                copies.callback(os.close, copy)
                descriptors.append(copy)
                return False

            file = io.BytesIO()
            file.write(b"\0")
            _Pickler(file, pickle.HIGHEST_PROTOCOL, buffer_callback=is_inline).dump(message)
            data = file.getbuffer()
            data[0] = len(descriptors)
            with self._sending:
                self.connection.send_bytes(data)
                if descriptors:
                    with self._socket() as way:
                        socket.send_fds(way, [b"+"], descriptors)

    def receive(self, deadline: float = math.inf, stall: float = math.inf) -> Any:
        """Wait for the next message and return it.

        Args:
            deadline: time of ``time.monotonic`` until which it must come.
            stall: seconds without a message or heartbeat until then.

        Raises:
            EOFError, OSError: the other end is gone; or this process has no descriptors for the message's arrays, which
                is lost (:func:`has_no_descriptor`).
            TimeoutError: no message came in time.
        """
        data = b""
        while not data:  # heartbeats are empty
            until = min(deadline, time.monotonic() + stall)
            if until < math.inf and not self.connection.poll(max(0.0, until - time.monotonic())):
                raise TimeoutError
            data = self.connection.recv_bytes()
        blocks = []
        if count := data[0]:
            with self._socket() as way:
                found = socket.recv_fds(way, 1, count, getattr(socket, "MSG_CMSG_CLOEXEC", 0))[1]
            blocks = _attached(found)
            if len(blocks) < count:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return pickle.loads(memoryview(data)[1:], buffers=blocks)  # of our own process

    def poll(self) -> bool:
        """Return True if :meth:`receive` would not wait long: a message, a heartbeat or the end has come."""
        return self.connection.poll()

    def send_heartbeats(self, progress: Callable[[], int]) -> None:
        """From now on send a heartbeat, from a thread, whenever ``progress()`` has changed."""

        def beat() -> None:
            last = progress()
            with suppress(OSError):  # the other end is gone
                while True:
                    time.sleep(HEARTBEAT_S)
                    if (now := progress()) != last:
                        last = now
                        with self._sending:
                            self.connection.send_bytes(b"")

        threading.Thread(target=beat, name="heartbeat", daemon=True).start()

    @contextmanager
    def _socket(self) -> Iterator[socket.socket]:
        """Provide the connection as a socket, which passes descriptors; it takes none itself."""
        way = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=self.connection.fileno())
        try:
            yield way
        finally:
            way.detach()

    def close(self) -> None:
        """Close this end; not while another thread receives, since the descriptor may be reused at once."""
        with self._sending:
            self.connection.close()


def _attached(descriptors: Sequence[int]) -> list[SharedBlock]:
    """Return the blocks of received descriptors; fewer if there is none for the copy that a mapping makes of each."""
    blocks: list[SharedBlock] = []
    try:
        for descriptor in descriptors:
            blocks.append(SharedBlock.attach(descriptor))
    except OSError as error:
        for descriptor in descriptors[len(blocks) :]:
            os.close(descriptor)
        if not has_no_descriptor(error):
            raise
    return blocks


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays, which can travel in shared memory."""

    def reducer_override(self, value: object) -> Any:
        if not (torch := sys.modules.get("torch")) or not isinstance(value, torch.Tensor):
            return NotImplemented
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor, (data, value.dtype, tuple(value.shape))


def _tensor(data: NDArray[np.uint8], dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    return torch.from_numpy(data).view(dtype).reshape(shape)


def _memory_file() -> int | None:
    """Return the descriptor of new anonymous shared memory; None if the system has none."""
    with suppress(AttributeError, OSError):
        return os.memfd_create("vidspec")
    return None


def _copied(view: memoryview) -> int | None:
    """Return the descriptor of new shared memory with a copy of ``view``; None if the system has none."""
    if (descriptor := _memory_file()) is None:
        return None
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
