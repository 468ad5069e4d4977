"""Child processes: one way to start, watch and end them.

A child runs ``function(channel, *args)`` and exchanges any picklable messages with its parent. :func:`spawn` is the
default. :func:`fork` copies this process, for work on objects that cannot be sent or loaded again.

A child has a session of its own, so Ctrl-C and the end of the terminal reach the parent alone. The parent ends its
children; a child also ends itself as soon as the parent's end of the channel is closed, however the parent ended.
"""

from __future__ import annotations

import gc
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection as pipes
from pathlib import Path
from typing import Any, NamedTuple, TypeVarTuple

from vidspec.channel import Channel, has_no_descriptor
from vidspec.errors import DescriptorError

Args = TypeVarTuple("Args")

#: Seconds for a child to exit by itself after its channel has closed.
EXIT_SECONDS = 5.0
_fork_lock = threading.Lock()
# True once copies of this process have hung.
_forks_hang = False


class ChildEnded(Exception):
    """The child process has ended.

    Attributes:
        reason: "SIGKILL", "exit code 1", or the exception that ended it.
        traceback: the child's own traceback, if it sent one.
    """

    def __init__(self, reason: str, traceback: str = "") -> None:
        super().__init__(reason)
        self.reason, self.traceback = reason, traceback


class _Failure(NamedTuple):
    """Message: an exception ended the child's function."""

    error: str
    traceback: str


class Child:
    """A child process, as its parent sees it. All methods but :meth:`receive` are callable from any thread."""

    def __init__(self, process: subprocess.Popen[bytes] | _ForkedProcess, channel: Channel) -> None:
        self.process, self.channel = process, channel
        weakref.finalize(self, _collect, process, os.getpid())
        self._ticks, self._last_active = 0, time.monotonic()

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """True if the process is running."""
        return self.process.poll() is None

    def send(self, message: object) -> None:
        """Send a message.

        Raises:
            ChildEnded: the process has ended.
        """
        try:
            self.channel.send(message)
        except OSError:
            raise ChildEnded(self.end(EXIT_SECONDS)) from None

    def receive(self, deadline: float = math.inf, stall: float = math.inf) -> Any:
        """Return the next message, as :meth:`Channel.receive` does.

        Raises:
            ChildEnded: the process has ended; it is collected.
            TimeoutError, DescriptorError: as there; the process goes on.
        """
        try:
            message = self.channel.receive(deadline, stall)
        except TimeoutError:
            raise
        except (EOFError, OSError) as error:
            if has_no_descriptor(error):
                raise DescriptorError from None
            raise ChildEnded(self.end(EXIT_SECONDS)) from None
        if isinstance(message, _Failure):
            self.end(EXIT_SECONDS)
            raise ChildEnded(*message)
        return message

    def silent_s(self) -> float:
        """Return the seconds without activity, between two calls: running, waiting for a disk, or processor time used.

        It tells a working process from a stopped or deadlocked one. Without ``/proc`` every process counts as active.
        """
        now = time.monotonic()
        try:
            # Fields after the name, which may hold anything: state; 12th and 13th, ticks of user and system time.
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return now - self._last_active if Path("/proc/self/stat").exists() else 0.0
        fields = stat.rpartition(")")[2].split()
        used, before = int(fields[11]) + int(fields[12]), self._ticks
        self._ticks = used
        if fields[0] in "RD" or used > before:
            self._last_active = now
        return now - self._last_active

    def kill(self) -> None:
        """Kill the process, which ends a :meth:`receive` of another thread too."""
        self.process.kill()  # it may be stopped, or stuck in a pass: no other signal is certain

    def end(self, patience: float = 0.0) -> str:
        """Collect the process, killed if it has not exited within ``patience`` seconds, and return how it ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.process.kill()
        code = self.process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _collect(process: subprocess.Popen[bytes] | _ForkedProcess, parent: int) -> None:
    """Kill and collect a process that was forgotten, or left when its parent ends; not in forks of the parent."""
    if os.getpid() == parent and process.poll() is None:
        process.kill()
        process.wait()


def wait(children: Sequence[Child]) -> list[Child]:
    """Wait until messages of children have come, or their ends, and return those children."""
    ready = pipes.wait([child.channel.connection for child in children])
    return [child for child in children if child.channel.connection in ready]


def spawn(
    function: Callable[[Channel, *Args], None],
    *args: *Args,
    name: str,
    env: Mapping[str, str] | None = None,
    threads: int | None = None,
) -> Child:
    """Run an importable function in a new interpreter, without waiting for it to start.

    A fork would inherit CUDA's state and torch's threads, which it cannot use. The new interpreter inherits the
    environment and the import path; it does not import this one's main module.

    Args:
        function: called with the child's channel and ``args``.
        name: last word of the command line, for lists of processes.
        env: further environment variables.
        threads: number of torch's threads; torch's own choice if None.

    Raises:
        DescriptorError: this process has too many open files.
    """
    try:
        mine, theirs = pipes.Pipe()
        with theirs:
            child = Child(_launch(theirs, name, {**os.environ, **(env or {})}), Channel(mine))
    except OSError as error:
        if has_no_descriptor(error):
            raise DescriptorError from None
        raise
    with suppress(OSError):  # it has died: the first receive reports that
        child.channel.send((function, args, threads))
    return child


def _launch(theirs: pipes.Connection, name: str, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    handle = theirs.fileno()
    code = f"import sys; sys.path[:] = {sys.path}; from vidspec.process import run_child; run_child({handle})"
    command = [sys.executable, "-c", code, name]
    if sys.platform == "win32":
        os.set_handle_inheritable(handle, True)
        startup = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})
        group = subprocess.CREATE_NEW_PROCESS_GROUP
        return subprocess.Popen(command, env=env, startupinfo=startup, creationflags=group)
    return subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=2,  # results of the parent alone go to standard output
        pass_fds=[handle],
        start_new_session=True,
    )


def run_child(handle: int) -> None:
    """Run a spawned process: the function that its parent sends first."""
    if sys.platform == "win32":
        sys.exit(_run(Channel(pipes.PipeConnection(handle))))
    sys.exit(_run(Channel(pipes.Connection(handle))))


def can_fork() -> bool:
    """Return True if a copy of this process could work: not on Windows, after CUDA has started, or if copies hang."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return hasattr(os, "fork") and not _forks_hang and not (cuda is not None and cuda.is_initialized())


def refuse_forks() -> None:
    """Make :func:`can_fork` False from now on: copies of this process hang."""
    global _forks_hang
    _forks_hang = True


def fork(function: Callable[[Channel, *Args], None], *args: *Args, threads: int | None = None) -> Child:
    """Run a function in a copy of this process, which shares its objects without copying them.

    The copy closes all inherited files, some of them locked, so that they do not stay open after this process ends. It
    collects no garbage of this process.

    Args:
        function: called with the child's channel and ``args``.
        threads: as for :func:`spawn`.

    Raises:
        RuntimeError: not :func:`can_fork`.
    """
    if not can_fork():
        raise RuntimeError("this process cannot be forked")
    mine, theirs = pipes.Pipe()
    with warnings.catch_warnings(), _silent_tokenizers():
        warnings.simplefilter("ignore", DeprecationWarning)  # on forks with threads; the child needs none of them
        with _fork_lock:  # filelock refuses a fork while another thread forks
            pid = os.fork()
    if pid:
        theirs.close()
        return Child(_ForkedProcess(pid), Channel(mine))
    code = 1
    try:
        gc.freeze()  # what the parent has thrown away is its to finalize, with threads that are not here
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _close_inherited(theirs.fileno())
        code = _run(Channel(theirs), (function, args, threads))
    finally:
        os._exit(code)  # skip the parent's cleanup handlers


def _run(channel: Channel, work: tuple[Callable[..., None], tuple[object, ...], int | None] | None = None) -> int:
    """Run the child's function, by default the one that the parent sends; return the exit code."""
    try:
        _exit_with_parent(channel)
        function, args, threads = work or channel.receive()
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        function(channel, *args)
    except Exception as error:
        reason = error.reason if isinstance(error, ChildEnded) else f"{type(error).__name__}: {error}"
        with suppress(OSError):  # the parent is gone
            channel.send(_Failure(reason, traceback.format_exc()))
        return 1
    return 0


def _exit_with_parent(channel: Channel) -> None:
    """From now on end this process as soon as the other end of the channel is closed."""
    if not hasattr(select, "poll"):  # on Windows the next receive fails
        return
    hang_up = select.poll()
    hang_up.register(channel.connection.fileno(), 0)

    def watch() -> None:
        hang_up.poll()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _close_inherited(kept: int) -> None:
    """Close all files but the three standard ones and ``kept``."""
    for name in os.listdir("/dev/fd"):
        if int(name) > 2 and int(name) != kept:
            with suppress(OSError):  # the listing's own
                os.close(int(name))


class _ForkedProcess:
    """The part of ``subprocess.Popen`` that :class:`Child` uses, for a fork."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self._code is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if ended else None
            return self._code

    def wait(self, timeout: float = math.inf) -> int:
        until, pause = time.monotonic() + timeout, 0.0005
        while (code := self.poll()) is None:
            left = until - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired("fork", timeout)
            pause = min(2 * pause, left, 0.05)
            time.sleep(pause)
        return code

    def kill(self) -> None:
        with self._lock:
            if self._code is None:
                os.kill(self.pid, signal.SIGKILL)


@contextmanager
def _silent_tokenizers() -> Iterator[None]:
    """Silence the warning that ``tokenizers`` prints in a fork, unless the user set the variable.

    ``os.environ`` does not change: other threads may be iterating over it.
    """
    if "TOKENIZERS_PARALLELISM" in os.environ:
        yield
        return
    os.putenv("TOKENIZERS_PARALLELISM", "false")
    try:
        yield
    finally:
        os.unsetenv("TOKENIZERS_PARALLELISM")
