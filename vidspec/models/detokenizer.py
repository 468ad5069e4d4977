"""Incremental detokenization without incomplete characters; stop strings; the reasoning of thinking models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from vidspec.models.base import StockTokenizer

#: Tags around the reasoning of a thinking model. The opening one ends its prompt, or begins its text.
OPENING_TAG, CLOSING_TAG = "<think>", "</think>"

#: Replacement character of decoders for bytes that are not a complete character yet.
_INCOMPLETE = "\ufffd"
#: Extra tokens decoded before the longest stop string, since special tokens add no text.
_MARGIN = 8


def token_decoder(tokenizer: StockTokenizer) -> Callable[[Sequence[int]], str]:
    """Return a function that decodes tokens, without special ones other than the tags of reasoning.

    It calls the tokenizer's backend: the stock tokenizer spends several times as long checking each id.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    decode: Callable[[Sequence[int]], str] = partial(backend.decode, skip_special_tokens=True)
    ids = {backend.token_to_id(tag): tag for tag in (OPENING_TAG, CLOSING_TAG)}
    special = {token: tag for token, tag in ids.items() if token is not None and not decode([token])}
    return partial(_decode_with_tags, decode, special) if special else decode


def _decode_with_tags(decode: Callable[[Sequence[int]], str], tags: Mapping[int, str], token_ids: Sequence[int]) -> str:
    """Decode tokens, with the text of special ones in ``tags``."""
    text, begin = "", 0
    for at, token in enumerate(token_ids):
        if token in tags:
            text, begin = text + decode(token_ids[begin:at]) + tags[token], at + 1
    return text + decode(token_ids[begin:])


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


class WrittenText(NamedTuple):
    """A text in its parts: the answer, None if it ended before it, and the reasoning before it, None without any."""

    answer: str | None
    reasoning: str | None = None


def split_reasoning(text: str, *, thinks: bool) -> WrittenText:
    """Split a text at its first closing tag if it begins with reasoning.

    Args:
        text: whole.
        thinks: True if its prompt ends with the opening tag; otherwise the text must begin with it.
    """
    begun = text.lstrip()
    if not (thinks or begun.startswith(OPENING_TAG)):
        return WrittenText(text)
    reasoning, closed, answer = begun.removeprefix(OPENING_TAG).partition(CLOSING_TAG)
    return WrittenText(answer if closed else None, reasoning.strip())


def reasoning_end(tokenizer: StockTokenizer) -> Callable[[Sequence[int]], bool]:
    """Return a function that is True for tokens of which the last one completes the closing tag."""
    decode, tail = token_decoder(tokenizer), len(CLOSING_TAG) + _MARGIN
    return lambda token_ids: CLOSING_TAG in decode(token_ids[-tail:])


class StopStrings:
    """Detector of stop strings for :class:`~vidspec.decoding.limits.StoppingRules`; those in reasoning stop nothing.

    Args:
        tokenizer: of the generating model.
        strings: at least one.
        thinks: see :func:`split_reasoning`.
    """

    def __init__(self, tokenizer: StockTokenizer, strings: Sequence[str], *, thinks: bool = False) -> None:
        self._decode, self._strings, self._thinks = token_decoder(tokenizer), tuple(strings), thinks
        # A token with text has at least one byte.
        self._tail = max(len(string.encode()) for string in strings) + _MARGIN

    def has_stop(self, token_ids: Sequence[int]) -> bool:
        """Return True if the last tokens contain a stop string, for example one that the last token completed."""
        tail = self._decode(token_ids[-self._tail :])
        if not any(string in tail for string in self._strings):
            return False
        answer = split_reasoning(self._decode(token_ids), thinks=self._thinks).answer or ""
        return any(string in answer for string in self._strings)


class Detokenizer:
    """Incremental decoding of one text; special tokens and reasoning add nothing.

    The text of a token depends on those before it (byte-level characters, leading spaces), so the tokens since the last
    settled character are decoded together with a few settled ones before them.

    Args:
        tokenizer: tokenizer of the generating model.
        stop: stop strings; they cut the text of :meth:`finish`, not that of single tokens.
        thinks: see :func:`split_reasoning`.
    """

    def __init__(self, tokenizer: StockTokenizer, stop: Sequence[str] = (), *, thinks: bool = False) -> None:
        self._decode, self._stop, self._thinks = token_decoder(tokenizer), stop, thinks
        self._held: str | None = ""  # reasoning so far, or what may become its tag; None in the answer
        self._ids: list[int] = []
        self._settled = 0  # tokens whose text has been handed out
        self._window = 0  # first token of the decoded window
        self._before = ""  # the text of the window's settled tokens

    def add(self, token: int) -> str:
        """Append ``token`` and return the text it adds to the answer; empty while a character is incomplete."""
        self._ids.append(token)
        now = self._decode(self._ids[self._window :])
        if now.endswith(_INCOMPLETE):
            return ""
        added = now[len(self._before) :]
        if self._settled - self._window > 16:
            self._window = self._settled - 4
            now = self._decode(self._ids[self._window :])
        self._settled, self._before = len(self._ids), now
        return added if self._held is None else self._release(self._held + added)

    def _release(self, held: str) -> str:
        """Hold text back that is reasoning or may become its tag; return what belongs to the answer."""
        if not self._thinks:
            if not held.strip():
                return held
            if OPENING_TAG.startswith(held.lstrip()):
                self._held = held
                return ""
        answer = split_reasoning(held, thinks=self._thinks).answer
        self._held = held if answer is None else None
        return answer or ""

    def preview(self, token: int) -> str:
        """Return the text ``token`` would add, without appending it."""
        if self._held or (self._thinks and self._held is not None):
            return ""
        return self._decode([*self._ids[self._window :], token])[len(self._before) :]

    def finish(self) -> WrittenText:
        """Return the whole text, its answer up to the first stop string."""
        answer, reasoning = split_reasoning(self._decode(self._ids), thinks=self._thinks)
        return WrittenText(None if answer is None else cut_at_stop(answer, self._stop).strip(), reasoning)
