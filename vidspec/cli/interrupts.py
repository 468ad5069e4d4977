"""How a command ends after Ctrl-C, SIGTERM and SIGHUP: the terminal and all files are left in order."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, NoReturn

__all__ = ["CommandEnding", "Terminated", "defer_interrupt", "ending_of", "raise_on_signals"]

#: Seconds after which a signal is sent again that came at a time when nothing could be raised.
AGAIN = 0.02


class CommandEnding(NamedTuple):
    """How a command ended, in a word, and its exit code: 128 and the signal's number, as shells have it."""

    word: str
    code: int


class Terminated(KeyboardInterrupt):
    """One of :data:`SIGNALS` arrived; code that cleans up after Ctrl-C does so after this too."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__()
        self.number = number


#: Signals that end a command besides Ctrl-C, and the word for each; there is no SIGHUP on Windows.
SIGNALS = {
    getattr(signal, name): word
    for name, word in (("SIGTERM", "terminated"), ("SIGHUP", "hung up"))
    if hasattr(signal, name)
}


def ending_of(stop: BaseException) -> CommandEnding:
    """How to end with what ``stop``, or what it stands for, was raised by."""
    for one in (stop, stop.__cause__):
        if isinstance(one, Terminated):
            return CommandEnding(SIGNALS[one.number], 128 + one.number)
    return CommandEnding("interrupted", 128 + signal.SIGINT)


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """In here each of :data:`SIGNALS` raises :class:`Terminated`, once: a second one ends the process at once.

    Neither they nor Ctrl-C are lost where they come while something is being freed, which Python would only report.

    Processes that are started here do not inherit it. Outside the main thread, where no handler can be set, and for a
    signal that is ignored already (``nohup``), nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, _terminated)
    hook = sys.unraisablehook

    def again(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            hook(unraisable)
            return
        number: int = signal.SIGINT
        if isinstance(unraisable.exc_value, Terminated):
            number = unraisable.exc_value.number
            signal.signal(number, _terminated)
        timer = threading.Timer(AGAIN, os.kill, (os.getpid(), number))  # when what is being freed is freed
        timer.daemon = True
        timer.start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


@contextmanager
def defer_interrupt() -> Iterator[Callable[[], bool]]:
    """In here the first Ctrl-C is only noted, so that no cache is left half written; the second one raises.

    Gives a function that returns whether it was pressed. Outside the main thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    pressed = False
    before = signal.getsignal(signal.SIGINT)

    def press(_number: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)


def _terminated(number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)
    if number != signal.SIGTERM:
        _leave_terminal()
    raise Terminated(number)


def _leave_terminal() -> None:
    """Where the terminal is gone, redirect output to nowhere, so that the last messages raise no error."""
    for output in (1, 2):
        try:
            os.write(output, b"")
        except OSError as error:
            if error.errno == errno.EIO:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, output)
                os.close(nowhere)
