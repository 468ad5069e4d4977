"""Render the chat template of a checkpoint, an untrusted program, with limits on time, memory and output.

Jinja's sandbox keeps a template from Python's objects, but not from looping forever or building a text of many
gigabytes. So each prompt is rendered in a fork that the kernel ends at its limits. A process that has started CUDA must
not be forked: there a spawned process forks instead. Windows has no forks: there only the time is limited.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from vidspec.errors import ModelError
from vidspec.limited import ATTEMPTS, START_S, Limits, OverTime, run_limited
from vidspec.process import Channel, Child, ChildEnded, can_fork, spawn

__all__ = ["LIMITS", "TemplateRenderer"]

#: Limits of the rendering process.
LIMITS = Limits(cpu_s=2, wall_s=10.0, room=256 << 20)
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
                reply: RenderedPrompt = child.receive(time.monotonic() + START_S + LIMITS.wall_s)
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
    try:
        return run_limited(_render, apply, messages, options, limits=LIMITS)
    except OverTime:
        return RenderedPrompt("", "takes too long")
    except ChildEnded as error:
        return RenderedPrompt("", f"cannot be rendered: its process ended {ATTEMPTS} times ({error.reason})")


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
