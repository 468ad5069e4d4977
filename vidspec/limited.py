"""Run a function over untrusted data in a process that the kernel ends at limits of time and memory.

The process is a fork. A process that has started CUDA must not be forked, nor one whose forks hang, as with a library
that joins its threads when Python drops them in a fork: there a spawned process forks instead.
Windows has no forks: there only the wall time is limited.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

from vidspec.channel import Channel
from vidspec.process import Child, ChildEnded, can_fork, fork, refuse_forks, spawn

T = TypeVar("T")
Args = TypeVarTuple("Args")

#: Forks for one call, and seconds without any work after which one counts as stuck.
ATTEMPTS, SILENT_S = 3, 1.0
#: Seconds for a spawned process to start.
START_S = 120.0


class Limits(NamedTuple):
    """CPU seconds, wall seconds, and bytes beyond those that the fork shares with its parent."""

    cpu_s: int
    wall_s: float
    room: int


class OverTime(Exception):
    """The function has used up its time."""


class _Silent(ChildEnded):
    """A fork was ended that waited for what it cannot get."""


def run_limited(function: Callable[[*Args], T], *args: *Args, limits: Limits) -> T:
    """Return what a function returns in a process with limits.

    Args:
        function: only computes; its result is picklable, and so are it and ``args`` where this process cannot fork.
        args: its arguments.
        limits: of the process.

    Raises:
        OverTime: it took more than the CPU or wall seconds.
        ChildEnded: it raised an exception, or its process ended, :data:`ATTEMPTS` times.
    """
    if can_fork():
        try:
            return _run_forked(function, args, limits)
        except _Silent:
            refuse_forks()
    return _run_spawned(function, args, limits)


def _run_forked(function: Callable[..., T], args: tuple[object, ...], limits: Limits) -> T:
    """Return what a function returns in a fork; raises as :func:`run_limited`, or _Silent if all forks were."""
    ends: list[ChildEnded] = []
    for _ in range(ATTEMPTS):
        child = fork(_send_result, limits, function, args)
        try:
            reply: tuple[T] = _receive(child, limits.wall_s)
            return reply[0]
        except ChildEnded as error:
            ends.append(error)
        finally:
            child.end()
    raise next((one for one in ends if not isinstance(one, _Silent)), ends[-1])


def _run_spawned(function: Callable[..., T], args: tuple[object, ...], limits: Limits) -> T:
    child = spawn(_serve, limits, function, args, name="vidspec limited")
    try:
        reply: tuple[T] | None = child.receive(time.monotonic() + START_S + limits.wall_s)
    except TimeoutError:
        raise OverTime from None
    finally:
        child.end()
    if reply is None:
        raise OverTime
    return reply[0]


def _serve(channel: Channel, limits: Limits, function: Callable[..., object], args: tuple[object, ...]) -> None:
    """Send the result of a call, in a tuple, from a spawned process; None if it took too long."""
    try:
        channel.send((_run_forked(function, args, limits) if can_fork() else function(*args),))
    except OverTime:
        channel.send(None)


def _send_result(channel: Channel, limits: Limits, function: Callable[..., object], args: tuple[object, ...]) -> None:
    _set_limits(limits)
    channel.send((function(*args),))


def _receive(child: Child, wall_s: float) -> tuple[Any]:
    """Return a fork's reply.

    Raises:
        OverTime: it took too long.
        ChildEnded: it has ended otherwise.
        _Silent: it sleeps, though the function only computes: it waits for what threads of its parent held.
    """
    until = time.monotonic() + wall_s
    while True:
        deadline = min(until, time.monotonic() + SILENT_S)
        try:
            reply: tuple[Any] = child.receive(deadline)  # also one that came while this process was stopped
            return reply
        except TimeoutError:
            if deadline == until:
                raise OverTime from None
            if child.silent_s() >= SILENT_S:
                raise _Silent("it hangs") from None
        except ChildEnded as error:  # the kernel kills it at the limit of CPU time
            if error.reason in ("SIGKILL", "SIGXCPU"):
                raise OverTime from None
            raise


def _set_limits(limits: Limits) -> None:
    """Limit the time and the memory of this process, which works on untrusted data, and silence it."""
    import resource

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a library that panics prints its stack

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s))
    with contextlib.suppress(OSError, ValueError):  # no /proc, or a limit below this already
        held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + limits.room, held + limits.room))
