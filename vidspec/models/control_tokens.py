"""Control tokens in a user's texts: refused in prompts, plain text in the values that fill them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vidspec.escaping import VALUE, without_marks

if TYPE_CHECKING:
    from vidspec.models.base import StockTokenizer


class ControlTokens:
    """The special tokens of a tokenizer as texts spell them, such as ``<|im_end|>`` and the video's placeholder.

    Args:
        tokenizer: of the model that reads the texts.
    """

    def __init__(self, tokenizer: StockTokenizer) -> None:
        self._tokenizer = tokenizer
        known = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        longest_first = sorted(filter(str.strip, known), key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    def find(self, text: str) -> str | None:
        """Return the first control token outside the marked values of a text; None if there is none."""
        found = self._pattern.search(VALUE.sub("\0", text))
        return None if found is None else found[0]

    def encode(self, text: str) -> list[int]:
        """Tokenize a rendered prompt; a control token (partly) in a marked value is the tokens of its letters."""
        plain, values = "", list[range]()
        for at, part in enumerate(VALUE.split(text)):  # in turn text of the prompt, and a value
            begin, plain = len(plain), plain + without_marks(part)
            if at % 2:
                values.append(range(begin, len(plain)))
        ids, done = list[int](), 0
        for found in self._pattern.finditer(plain) if values else ():
            if any(found.start() < value.stop and value.start < found.end() for value in values):
                ids += self._tokenizer.encode(plain[done : found.start()], add_special_tokens=False)
                ids += self._tokenizer.encode(found[0], add_special_tokens=False, split_special_tokens=True)
                done = found.end()
        return ids + self._tokenizer.encode(plain[done:], add_special_tokens=False)  # type: ignore[no-any-return]
