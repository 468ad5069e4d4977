"""Stopping rules and end reasons: pure functions of a text's tokens, so that all methods agree. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

#: An end token; no room for another token; a repetition of the same words; a stop string.
EndReason: TypeAlias = Literal["eos", "length", "loop", "stop"]
#: A loop repeats a stretch of at most PERIOD tokens at least TIMES times, with at least SHORTEST tokens in all: "very,
#: very, very" is none, and a list whose lines differ in a word is none.
PERIOD, TIMES, SHORTEST = 64, 4, 24


def ends_in_loop(token_ids: Sequence[int]) -> bool:
    """Return True if the last tokens of a text repeat one stretch.

    Depends on the last ``PERIOD * TIMES`` tokens only.
    """
    for period in range(1, PERIOD + 1):
        length = max(TIMES * period, SHORTEST)
        if len(token_ids) < length:
            return False
        if token_ids[-1] == token_ids[-1 - period]:
            tail = token_ids[len(token_ids) - length :]
            if tail[period:] == tail[:-period]:
                return True
    return False


@dataclass(frozen=True)
class StoppingRules:
    """Stopping rules of one generation.

    A text ends at one of ``eos``, at ``max_new_tokens``, with ``stop_loops`` where it begins to loop, and where
    ``stopped`` finds that the last token completes a stop string.
    """

    max_new_tokens: int
    eos: frozenset[int] = frozenset()
    stop_loops: bool = False
    stopped: Callable[[Sequence[int]], bool] | None = None

    def is_finished(self, token_ids: Sequence[int]) -> bool:
        """Return True if a text ends with its last token."""
        return (
            len(token_ids) >= self.max_new_tokens
            or token_ids[-1] in self.eos
            or (self.stop_loops and ends_in_loop(token_ids))
            or (self.stopped is not None and self.stopped(token_ids))
        )

    def end_reason(self, token_ids: Sequence[int]) -> EndReason:
        """Return why a finished text ended; ``loop`` only without end token and stop string, truncated or not."""
        if token_ids[-1] in self.eos:
            return "eos"
        if self.stopped is not None and self.stopped(token_ids):
            return "stop"
        return "loop" if ends_in_loop(token_ids) else "length"

    def cut(self, token_ids: tuple[int, ...], emitted: Sequence[int]) -> tuple[tuple[int, ...], bool]:
        """Return the new tokens that may be emitted after ``emitted``, and True if the text ends with them."""
        reads = self.stop_loops or self.stopped is not None
        if not reads and len(emitted) + len(token_ids) < self.max_new_tokens and self.eos.isdisjoint(token_ids):
            return token_ids, False
        text = list(emitted)
        for count, token in enumerate(token_ids, 1):
            text.append(token)
            if token in self.eos or len(text) >= self.max_new_tokens or (reads and self.is_finished(text)):
                return token_ids[:count], True
        return token_ids, False
