"""Renders chat templates that came with a checkpoint: programs of others, bounded in time, memory and output.

The library runs them in a sandbox that keeps them from Python's objects, but not from looping for ever or from making
a text of many gigabytes. So each is rendered in a forked process that the kernel ends at its limits; where processes
cannot be forked (Windows), in this one, without limits.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from vidspec.errors import ModelError
from vidspec.models.forking import silent_tokenizers

__all__ = ["render_template"]

#: Of the process that renders: seconds of computing, seconds in all, bytes beside what it shares with this one.
CPU_S, WALL_S, ROOM = 2, 10.0, 256 << 20
#: Characters of a prompt; the longest of published models take a few per token of 128k.
LONGEST = 1 << 20


def render_template(name: str, render: Callable[[], str]) -> str:
    """What ``render`` returns, which applies a template; it runs in another process and changes nothing here.

    Args:
        name: of the model, for messages.
        render: takes no arguments and gives the text.

    Raises:
        ModelError: the template is no template, does what the sandbox forbids, or exceeds a limit.
    """
    answer = _answer(render) if hasattr(os, "fork") else _said(render)
    kind, text = answer[:1], answer[1:].decode("utf-8", "surrogatepass")
    if kind == b"+":
        return text
    raise ModelError(
        f"{name}: its chat template {text or 'takes too long'}", hint="correct chat_template.jinja", kind="template"
    )


def _said(render: Callable[[], str]) -> bytes:
    """``+`` and the text, or ``-`` and what is wrong with the template."""
    try:
        text = render()
    except MemoryError:
        return b"-needs too much memory"
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return f"-cannot be rendered: {lines[0][:200]}".encode("utf-8", "surrogatepass")
    if len(text) > LONGEST:
        return f"-gives a prompt of {len(text)} characters".encode()
    return b"+" + text.encode("utf-8", "surrogatepass")


def _answer(render: Callable[[], str]) -> bytes:
    """:func:`_said` of a forked process; ``-`` alone if it was ended."""
    reading, writing = os.pipe()
    with warnings.catch_warnings(), silent_tokenizers():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: nothing of theirs is used
        child = os.fork()
    if child == 0:
        try:
            _limit()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(_said(render))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        answer = _until(pipe.fileno(), time.monotonic() + WALL_S)
    if not answer:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return answer if answer and status == 0 else b"-"


def _limit() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    with contextlib.suppress(OSError, ValueError):  # no /proc, or a limit below this already
        held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + ROOM, held + ROOM))


def _until(pipe: int, deadline: float) -> bytes:
    """All that comes until the other end closes; nothing if ``deadline`` is earlier."""
    said = bytearray()
    while (left := deadline - time.monotonic()) > 0:
        if select.select([pipe], [], [], left)[0]:
            if not (piece := os.read(pipe, 1 << 16)):
                return bytes(said)
            said += piece
    return b""
