"""Text from tokens as they come: each token yields what it adds, never half a character."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vidspec.models.base import StockTokenizer

__all__ = ["Detokenizer"]

#: What decoders put in place of bytes that are no complete character yet.
_INCOMPLETE = "\ufffd"


class Detokenizer:
    """Incremental decoding of one text; special tokens add nothing.

    Decoding a token depends on those before it (byte-level characters, leading spaces), so the tokens since the last
    settled character are decoded together with a few settled ones before them.
    """

    def __init__(self, tokenizer: StockTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._settled = 0  # tokens whose text has been handed out
        self._window = 0  # first token of the window that is decoded

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def add(self, token: int) -> str:
        """What ``token`` adds to the text; empty while a character is incomplete."""
        self._ids.append(token)
        before = self._decode(self._ids[self._window : self._settled])
        now = self._decode(self._ids[self._window :])
        if now.endswith(_INCOMPLETE):
            return ""
        self._window = max(self._window, self._settled - 4) if self._settled - self._window > 16 else self._window
        self._settled = len(self._ids)
        return now[len(before) :]

    def instead(self, token: int) -> str:
        """What ``token`` would add, which is not taken in."""
        before = self._decode(self._ids[self._window : self._settled])
        return self._decode([*self._ids[self._window :], token])[len(before) :]

    def finish(self) -> str:
        """The whole text."""
        return self._decode(self._ids).strip()
