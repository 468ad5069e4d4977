"""Incremental detokenization without incomplete characters, and stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vidspec.models.base import StockTokenizer

__all__ = ["Detokenizer", "StopStrings", "cut_at_stop"]

#: Replacement character of decoders for bytes that are not a complete character yet.
_INCOMPLETE = "\ufffd"
#: Extra tokens decoded before the longest stop string, since special tokens add no text.
_MARGIN = 8


def token_decoder(tokenizer: StockTokenizer) -> Callable[[Sequence[int]], str]:
    """Return a function that decodes tokens, without special ones.

    It calls the tokenizer's backend: the stock tokenizer spends several times as long checking each id.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return partial(backend.decode, skip_special_tokens=True)
    return partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def cut_at_stop(text: str, strings: Sequence[str], *, unfinished: bool = False) -> str:
    """Cut a text at its first stop string; if ``unfinished``, also at an end that may become one."""
    ends = [at for stop in strings if (at := text.find(stop)) >= 0]
    if unfinished:
        ends += [_unfinished(text, stop) for stop in strings]
    return text[: min(ends, default=None)]


def _unfinished(text: str, stop: str) -> int:
    """Return where the text ends with the beginning of a stop string; its length if it does not."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return at if at >= 0 else len(text)


class StopStrings:
    """Detector of stop strings for :class:`~vidspec.decoding.limits.StoppingRules`."""

    def __init__(self, tokenizer: StockTokenizer, strings: Sequence[str]) -> None:
        self._decode, self._strings = token_decoder(tokenizer), tuple(strings)
        # A token with text has at least one byte.
        self._tail = max(len(string.encode()) for string in strings) + _MARGIN

    def has_stop(self, token_ids: Sequence[int]) -> bool:
        """Return True if the last tokens contain a stop string, for example one that the last token completed."""
        tail = self._decode(token_ids[-self._tail :])
        return any(string in tail for string in self._strings)


class Detokenizer:
    """Incremental decoding of one text; special tokens add nothing.

    The text of a token depends on those before it (byte-level characters, leading spaces), so the tokens since the last
    settled character are decoded together with a few settled ones before them.

    Args:
        tokenizer: tokenizer of the generating model.
        stop: stop strings; they cut the text of :meth:`finish`, not that of single tokens.
    """

    def __init__(self, tokenizer: StockTokenizer, stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = token_decoder(tokenizer), stop
        self._ids: list[int] = []
        self._settled = 0  # tokens whose text has been handed out
        self._window = 0  # first token of the decoded window
        self._before = ""  # the text of the window's settled tokens

    def add(self, token: int) -> str:
        """Append ``token`` and return the text it adds; empty while a character is incomplete."""
        self._ids.append(token)
        now = self._decode(self._ids[self._window :])
        if now.endswith(_INCOMPLETE):
            return ""
        added = now[len(self._before) :]
        if self._settled - self._window > 16:
            self._window = self._settled - 4
            now = self._decode(self._ids[self._window :])
        self._settled, self._before = len(self._ids), now
        return added

    def preview(self, token: int) -> str:
        """Return the text ``token`` would add, without appending it."""
        return self._decode([*self._ids[self._window :], token])[len(self._before) :]

    def finish(self) -> str:
        """Return the whole text up to the first stop string."""
        return cut_at_stop(self._decode(self._ids), self._stop).strip()
