"""Deferral of signals during steps that must not be split."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["uninterrupted"]

#: Signals raised as exceptions: Ctrl-C, and those of ``vidspec.cli.interrupts``.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer the first signal to the end of the block; a second one is handled at once, for a hanging disk.

    No effect outside the main thread, as only that gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in before.items() if callable(handler)}
    received: list[int] = []

    def wait(number: int, frame: FrameType | None) -> None:
        handler = before[number]
        if received and callable(handler):
            handler(number, frame)
        received.append(number)

    for number in before:
        signal.signal(number, wait)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])
