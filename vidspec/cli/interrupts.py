"""How a command ends that is told to: after Ctrl-C and SIGTERM alike the terminal and files are left in order."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, NoReturn

__all__ = ["Ending", "Terminated", "ending_of", "terminable"]


#: Seconds after which a signal is sent again that came at a time when nothing could be raised.
AGAIN = 0.02


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

    Neither it nor Ctrl-C is lost where it comes while something is being freed, which Python would only report.

    Processes that are started here do not inherit it. Outside the main thread, where no handler can be set, and where
    the signal is ignored already, nothing changes.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGTERM, _terminated)
    told = sys.unraisablehook

    def again(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            told(unraisable)
            return
        number = signal.SIGINT
        if isinstance(unraisable.exc_value, Terminated):
            number = signal.SIGTERM
            signal.signal(number, _terminated)
        timer = threading.Timer(AGAIN, os.kill, (os.getpid(), number))  # when what is being freed is freed
        timer.daemon = True
        timer.start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = told
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated
