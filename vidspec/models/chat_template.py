"""Render the chat template of a checkpoint, an untrusted program, with limits on time, memory and output.

Jinja's sandbox keeps a template from Python's objects, but not from looping forever or building a text of many
gigabytes. So each prompt is rendered in a fork that the kernel ends at its limits. A process that has started CUDA must
not be forked: there a spawned process forks instead. Windows has no forks: there only the time is limited.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from vidspec.errors import ModelError
from vidspec.process import Channel, Child, ChildEnded, can_fork, fork, spawn

__all__ = ["TemplateRenderer", "set_limits"]

#: Limits of the rendering process: CPU seconds, wall seconds, bytes beyond those it shares with this one.
CPU_S, WALL_S, ROOM = 2, 10.0, 256 << 20
#: Forks for one prompt, and seconds without any work after which one counts as stuck.
ATTEMPTS, SILENT_S = 3, 1.0
#: Seconds for a spawned process to start.
START_S = 120.0
#: Maximum characters of a prompt; a context of 128k tokens has a few per token.
LONGEST = 1 << 20


class RenderedPrompt(NamedTuple):
    """The text, or the problem with the template."""

    text: str
    problem: str | None = None


class TemplateRenderer:
    """Renders the prompts of one model; thread-safe.

    Args:
        apply: renders messages with the template in its keyword arguments; picklable.
        encode: the model's tokenizer, which is tried on each prompt within the same limits.
    """

    def __init__(self, apply: Callable[..., str], encode: Callable[[str], list[int]] | None = None) -> None:
        if encode is not None:
            apply = partial(_apply_and_encode, apply, encode)
        self.apply = apply
        self._child: Child | None = None
        self._lock = threading.Lock()
        if not can_fork():
            self._child = spawn(_serve, apply, name="vidspec templates")  # it takes seconds to start

    def __call__(self, name: str, messages: Sequence[Mapping[str, object]], **options: object) -> str:
        """Return the text of ``messages``.

        Args:
            name: model name, for errors.
            messages: as templates take them.
            options: keyword arguments of ``apply``.

        Raises:
            ModelError: the template is invalid, does what the sandbox forbids, or exceeds a limit.
        """
        if can_fork():
            text, problem = _render_in_fork(self.apply, messages, options)
        else:
            text, problem = self._render_in_spawned(messages, options)
        if problem is None:
            return text
        raise ModelError(f"{name}: its chat template {problem}", hint="correct chat_template.jinja", kind="template")

    def _render_in_spawned(
        self, messages: Sequence[Mapping[str, object]], options: Mapping[str, object]
    ) -> RenderedPrompt:
        with self._lock:
            child = self._child = self._child or spawn(_serve, self.apply, name="vidspec templates")
            try:
                child.send((messages, options))
                reply: RenderedPrompt = child.receive(time.monotonic() + START_S + WALL_S)
                return reply
            except (ChildEnded, TimeoutError) as error:
                self._child = None
                child.end()
                return RenderedPrompt("", f"cannot be rendered: its process ended ({error or 'it hangs'})")


def _apply_and_encode(
    apply: Callable[..., str],
    encode: Callable[[str], list[int]],
    messages: Sequence[Mapping[str, object]],
    **options: object,
) -> str:
    """Return the rendered text, after its tokens have been counted.

    Raises:
        ValueError: they are too many.
    """
    text = apply(messages, **options)
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a pair is no text for a tokenizer
    if len(text) <= LONGEST and (count := len(encode(whole))) > LONGEST:
        raise ValueError(f"the tokenizer makes {count} tokens of {len(text)} characters")
    return text


def _serve(channel: Channel, apply: Callable[..., str]) -> None:
    """Render prompts in a spawned process."""
    render = _render_in_fork if can_fork() else _render
    while True:
        channel.send(render(apply, *channel.receive()))


def _render_in_fork(
    apply: Callable[..., str], messages: Sequence[Mapping[str, object]], options: Mapping[str, object]
) -> RenderedPrompt:
    for _ in range(ATTEMPTS):
        child = fork(_send_rendered, apply, messages, options)
        try:
            reply = _receive(child)
        finally:
            reason = child.end()
        if reply is not None:
            return reply
    return RenderedPrompt("", f"cannot be rendered: its process ended {ATTEMPTS} times ({reason})")


def _receive(child: Child) -> RenderedPrompt | None:
    """Return a fork's reply; None where it fails for what is no fault of the template.

    A template only computes, so a fork that sleeps waits for a lock that a thread of its parent held.
    """
    until = time.monotonic() + WALL_S
    while (now := time.monotonic()) < until:
        try:
            reply: RenderedPrompt = child.receive(min(until, now + SILENT_S))
            return reply
        except TimeoutError:
            if child.silent_s() >= SILENT_S:
                return None
        except ChildEnded as error:  # the kernel kills it at the limit of CPU time
            return RenderedPrompt("", "takes too long") if error.reason in ("SIGKILL", "SIGXCPU") else None
    return RenderedPrompt("", "takes too long")


def _send_rendered(
    channel: Channel,
    apply: Callable[..., str],
    messages: Sequence[Mapping[str, object]],
    options: Mapping[str, object],
) -> None:
    set_limits()
    channel.send(_render(apply, messages, options))


def _render(
    apply: Callable[..., str], messages: Sequence[Mapping[str, object]], options: Mapping[str, object]
) -> RenderedPrompt:
    try:
        text = apply(messages, **options)
    except MemoryError:
        return RenderedPrompt("", "needs too much memory")
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return RenderedPrompt("", f"cannot be rendered: {lines[0][:200]}")
    if len(text) > LONGEST:
        return RenderedPrompt("", f"gives a prompt of {len(text)} characters")
    return RenderedPrompt(text)


def set_limits() -> None:
    """Limit the time and the memory of this process, which works on untrusted data, and silence it."""
    import resource

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a library that panics prints its stack

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    with contextlib.suppress(OSError, ValueError):  # no /proc, or a limit below this already
        held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + ROOM, held + ROOM))
