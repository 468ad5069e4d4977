"""Signals that end a command: raised as exceptions, so that the terminal and all files are left in order, and deferred.

Child processes do not get those of the terminal (``vidspec.process``)."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, NoReturn

__all__ = [
    "CommandEnding",
    "Terminated",
    "defer_signals",
    "end_quietly_on_interrupt",
    "ending_of",
    "raise_on_signals",
]

#: Seconds until a signal is sent again whose exception Python swallowed, such as in a finaliser, and until a wait is
#: interrupted that began between a signal and its handler.
RESEND_DELAY = 0.02


class CommandEnding(NamedTuple):
    """A word for the end of a command, and its exit code: 128 plus the signal's number, as in shells."""

    word: str
    code: int


class Terminated(KeyboardInterrupt):
    """One of :data:`SIGNALS` arrived. A KeyboardInterrupt, so that code cleans up as after Ctrl-C."""

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
    """Return the ending for the signal that raised ``stop`` or its cause."""
    for one in (stop, stop.__cause__):
        if isinstance(one, Terminated):
            return CommandEnding(SIGNALS[one.number], 128 + one.number)
    return CommandEnding("interrupted", 128 + signal.SIGINT)


def end_quietly_on_interrupt() -> None:
    """Let Ctrl-C end this process at once and without a traceback, except within :func:`raise_on_signals`.

    For a process that is a command: it has nothing to put in order while it starts, and nothing left when it exits.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as in the background of a shell
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Context in which :data:`SIGNALS` raise :class:`Terminated`; a second signal ends the process at once.

    Ctrl-C raises KeyboardInterrupt each time. A signal or Ctrl-C during a finaliser, where Python only reports the
    exception, is sent again. One that arrives just before the main thread waits for a lock interrupts that wait.

    No effect outside the main thread, where no handler can be set, and for
    signals that are ignored already (``nohup``).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, _raise_terminated)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    hook = sys.unraisablehook

    def again(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            hook(unraisable)
            return
        number: int = signal.SIGINT
        if isinstance(unraisable.exc_value, Terminated):
            number = unraisable.exc_value.number
            signal.signal(number, _raise_terminated)
        timer = threading.Timer(RESEND_DELAY, os.kill, (os.getpid(), number))  # after the finaliser
        timer.daemon = True
        timer.start()

    sys.unraisablehook = again
    try:
        with _interrupt_waits():
            yield
    finally:
        sys.unraisablehook = hook
        for number, handler in reversed(before.items()):  # that of Ctrl-C, which may be pressed again, first
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


@contextmanager
def _interrupt_waits() -> Iterator[None]:
    """Interrupt waits of the main thread after each signal by SIGURG, whose handler does nothing.

    Python runs a handler between two instructions, or if the signal interrupts a wait; neither is so for a signal that
    arrives while the thread goes from the one to the other. No effect on Windows.
    """
    if sys.platform == "win32":
        yield
        return
    main = threading.main_thread()
    arrived, sent = socket.socketpair()
    sent.setblocking(False)

    def interrupt() -> None:
        with arrived:
            while numbers := arrived.recv(64):
                if set(numbers) - {signal.SIGURG}:
                    time.sleep(RESEND_DELAY)
                    signal.pthread_kill(main.ident or 0, signal.SIGURG)

    handler = signal.signal(signal.SIGURG, lambda number, frame: None)
    earlier = signal.set_wakeup_fd(sent.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=interrupt, name="vidspec-signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier)
        signal.signal(signal.SIGURG, handler)
        sent.close()  # ends the thread


@contextmanager
def defer_signals(*numbers: int) -> Iterator[list[int]]:
    """Defer the first signal to the end of the block; a second one is handled at once, for a hanging disk.

    Yields the list of the deferred signals. If the block clears it, they count as handled. No effect outside the main
    thread, as only that gets signals.

    Args:
        numbers: the signals; Ctrl-C and :data:`SIGNALS` if there are none.
    """
    deferred: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield deferred
        return
    before = {number: signal.getsignal(number) for number in numbers or (signal.SIGINT, *SIGNALS)}
    before = {number: handler for number, handler in before.items() if callable(handler)}

    def defer(number: int, frame: FrameType | None) -> None:
        handler = before[number]
        if deferred and callable(handler):
            handler(number, frame)
        deferred.append(number)

    for number in before:
        signal.signal(number, defer)
    try:
        yield deferred
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if deferred:
        signal.raise_signal(deferred[0])


def _raise_terminated(number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)
    if number != signal.SIGTERM:
        _leave_terminal()
    raise Terminated(number)


def _leave_terminal() -> None:
    """Redirect output to the null device if the terminal is gone, so that the last messages raise no error."""
    for output in (1, 2):
        try:
            os.write(output, b"")
        except OSError as error:
            if error.errno == errno.EIO:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, output)
                os.close(nowhere)
