"""Try a checkpoint's tokenizer in a process with limits before this process uses it.

A ``tokenizer.json`` is a program too: its normaliser or decoder may multiply a text, its regular expressions may never
end. The trial encodes printable text and decodes the whole vocabulary; the renderer of chat templates encodes each
prompt with limits.
"""

from __future__ import annotations

from vidspec.errors import ModelError
from vidspec.limited import OverTime, run_limited
from vidspec.models.base import StockTokenizer
from vidspec.models.chat_template import LIMITS
from vidspec.process import ChildEnded

__all__ = ["try_tokenizer"]

#: Printable ASCII, and words.
TEXT = "".join(map(chr, range(32, 127))) + "\nDescribe the video in one sentence of 12 words: what moves, and where?"
#: Most tokens per character of a text, special tokens aside; most characters per id of the vocabulary, on average.
TOKENS, CHARACTERS = 16, 64
#: Ids decoded at once.
CHUNK = 4096

_tried: set[bytes] = set()


def try_tokenizer(name: str, tokenizer: StockTokenizer, key: bytes | None = None) -> None:
    """Refuse a tokenizer that exceeds the limits.

    Args:
        name: the model name the user gave.
        tokenizer: as loaded; nothing has been encoded with it.
        key: identifies its file; a file is tried once.

    Raises:
        ModelError: it takes too long, needs too much memory, multiplies texts, or fails.
    """
    if key in _tried:
        return
    try:
        problem = run_limited(_problem, tokenizer, limits=LIMITS)
    except OverTime:
        problem = "takes too long for a short text"
    except ChildEnded as error:
        problem = f"needs too much memory for a short text, or crashes ({error.reason})"
    if problem is not None:
        raise ModelError(f"{name}: its tokenizer {problem}", hint="take the original tokenizer.json", kind="unreadable")
    if key is not None:
        _tried.add(key)


def _problem(tokenizer: StockTokenizer) -> str | None:
    """Return what is wrong with a tokenizer; None if nothing is."""
    try:
        return _growth(tokenizer)
    except MemoryError:
        return "needs too much memory for a short text"
    except BaseException as error:  # a panic of the library is no Exception
        return f"fails: {(str(error).strip().splitlines() or [type(error).__name__])[0][:200]}"


def _growth(tokenizer: StockTokenizer) -> str | None:
    """Return what a tokenizer makes too much of; None if nothing."""
    count = len(tokenizer.encode(TEXT))
    if count > TOKENS * len(TEXT):
        return f"makes {count} tokens of {len(TEXT)} characters"
    size = max(tokenizer.get_vocab().values()) + 1
    for first in range(0, size, CHUNK):
        ids = list(range(first, min(first + CHUNK, size)))
        length = len(tokenizer.decode(ids))
        if length > CHARACTERS * CHUNK:
            return f"makes {length} characters of {len(ids)} ids"
    return None
