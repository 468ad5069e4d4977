"""How a command ends that is told to: after Ctrl-C and SIGTERM alike the terminal and files are left in order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, NoReturn

__all__ = ["Ending", "Terminated", "ending_of", "terminable"]


class Ending(NamedTuple):
    """What is said and the exit code, 128 and the signal's number as shells have it."""

    word: str
    code: int


class Terminated(KeyboardInterrupt):
    """SIGTERM; whoever cleans up after Ctrl-C does so after this."""


def ending_of(stop: BaseException) -> Ending:
    """How to end with what ``stop``, or what it stands for, was raised by."""
    if isinstance(stop, Terminated) or isinstance(stop.__cause__, Terminated):
        return Ending("terminated", 128 + signal.SIGTERM)
    return Ending("interrupted", 128 + signal.SIGINT)


@contextmanager
def terminable() -> Iterator[None]:
    """In here SIGTERM raises :class:`Terminated`, once: a second one ends the process at once.

    Processes that are started here do not inherit it. Outside the main thread, where no handler can be set, and where
    the signal is ignored already, nothing changes.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated
