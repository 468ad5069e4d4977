"""Text from tokens as they come: each token yields what it adds, never half a character; stop strings in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vidspec.models.base import StockTokenizer

__all__ = ["Detokenizer", "StopStrings", "cut_at_stop"]

#: What decoders put in place of bytes that are no complete character yet.
_INCOMPLETE = "\ufffd"
#: Tokens before those that a stop string can take that are decoded with them: a special token adds no text.
_MARGIN = 8


def token_decoder(tokenizer: StockTokenizer) -> Callable[[Sequence[int]], str]:
    """Gives the text of tokens, without special ones.

    A stock tokenizer spends several times as long on looking at each token id as its backend on decoding them all.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return partial(backend.decode, skip_special_tokens=True)
    return partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def cut_at_stop(text: str, strings: Sequence[str], *, unfinished: bool = False) -> str:
    """A text up to the first of the stop strings in it; of an ``unfinished`` one, also up to what may become one."""
    ends = [at for one in strings if (at := text.find(one)) >= 0]
    if unfinished:
        ends += [len(text) - n for one in strings for n in range(1, len(one)) if text.endswith(one[:n])]
    return text[: min(ends, default=None)]


class StopStrings:
    """Finds where a text contains one of several strings, for :class:`~vidspec.decoding.limits.StoppingRules`."""

    def __init__(self, tokenizer: StockTokenizer, strings: Sequence[str]) -> None:
        self._decode, self._strings = token_decoder(tokenizer), tuple(strings)
        # A token with text has one byte of it at the least.
        self._tail = max(len(one.encode()) for one in strings) + _MARGIN

    def has_stop(self, token_ids: Sequence[int]) -> bool:
        """Whether the last tokens of a text contain a stop string, as when its last token has completed one."""
        tail = self._decode(token_ids[-self._tail :])
        return any(one in tail for one in self._strings)


class Detokenizer:
    """Incremental decoding of one text; special tokens add nothing.

    Decoding a token depends on those before it (byte-level characters, leading spaces), so the tokens since the last
    settled character are decoded together with a few settled ones before them.

    Args:
        tokenizer: of the model that writes the text.
        stop: strings of which the first one ends the whole text; what single tokens add is not cut.
    """

    def __init__(self, tokenizer: StockTokenizer, stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = token_decoder(tokenizer), stop
        self._ids: list[int] = []
        self._settled = 0  # tokens whose text has been handed out
        self._window = 0  # first token of the window that is decoded
        self._before = ""  # the text of the window's settled tokens

    def add(self, token: int) -> str:
        """What ``token`` adds to the text; empty while a character is incomplete."""
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
        """What ``token`` would add, which is not taken in."""
        return self._decode([*self._ids[self._window :], token])[len(self._before) :]

    def finish(self) -> str:
        """The whole text, before a stop string."""
        return cut_at_stop(self._decode(self._ids), self._stop).strip()
