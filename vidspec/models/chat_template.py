"""Render the chat template of a checkpoint, an untrusted program, with limits on time, memory and output.

Jinja's sandbox keeps a template from Python's objects, but not from looping forever or building a text of many
gigabytes. So each is rendered in a forked process that the kernel ends at its limits; without fork (Windows), in this
process and without limits.
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

#: Limits of the rendering process: CPU seconds, wall seconds, bytes beyond those it shares with this one.
CPU_S, WALL_S, ROOM = 2, 10.0, 256 << 20
#: Maximum characters of a prompt; a context of 128k tokens has a few per token.
LONGEST = 1 << 20


def render_template(name: str, render: Callable[[], str]) -> str:
    """Run ``render`` in a forked process and return its text.

    Args:
        name: model name, for messages.
        render: applies the template and returns the text.

    Raises:
        ModelError: the template is invalid, does what the sandbox forbids, or exceeds a limit.
    """
    answer = _render_in_fork(render) if hasattr(os, "fork") else _render_reply(render)
    kind, text = answer[:1], answer[1:].decode("utf-8", "surrogatepass")
    if kind == b"+":
        return text
    raise ModelError(
        f"{name}: its chat template {text or 'takes too long'}", hint="correct chat_template.jinja", kind="template"
    )


def _render_reply(render: Callable[[], str]) -> bytes:
    """Return ``+`` and the text, or ``-`` and the problem with the template."""
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


def _render_in_fork(render: Callable[[], str]) -> bytes:
    """Return :func:`_render_reply` of a forked process; ``-`` alone if it was killed."""
    reading, writing = os.pipe()
    with warnings.catch_warnings(), silent_tokenizers():
        warnings.simplefilter("ignore", DeprecationWarning)  # on forks with threads; the child needs none
        child = os.fork()
    if child == 0:
        try:
            _set_limits()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(_render_reply(render))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        answer = _read_until(pipe.fileno(), time.monotonic() + WALL_S)
    if not answer:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return answer if answer and status == 0 else b"-"


def _set_limits() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    with contextlib.suppress(OSError, ValueError):  # no /proc, or a limit below this already
        held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + ROOM, held + ROOM))


def _read_until(pipe: int, deadline: float) -> bytes:
    """Read the pipe until the other end closes; return nothing if ``deadline`` passes first."""
    received = bytearray()
    while (remaining := deadline - time.monotonic()) > 0:
        if select.select([pipe], [], [], remaining)[0]:
            if not (data := os.read(pipe, 1 << 16)):
                return bytes(received)
            received += data
    return b""
