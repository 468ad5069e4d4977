"""Protected tokens, which are never loose: numbers, negations, a user's own words. Plain ids, no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from vidspec.engine.stock_types import StockTokenizer

__all__ = ["CLASSES", "protected_ids"]

_NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion dozen half first second
third fourth fifth sixth seventh eighth ninth tenth once twice
"""
_NEGATIONS = """
no not never none nothing nobody nowhere neither nor without cannot n't 't
"""
#: Stems that tokenizers split off before "n't" or "'t".
_STEMS = "isn aren wasn weren don doesn didn hasn haven hadn won wouldn couldn shouldn mustn"
#: English words of each class, the language of the supported models' captions. Digits are numbers as well.
CLASSES = {"numbers": tuple(_NUMBERS.split()), "negations": tuple(_NEGATIONS.split())}
#: Tokens with a digit, except names of bytes that are not digits.
_NUMERIC = re.compile(r"<0x3[0-9]>|(?!<0x..>$).*[0-9].*", re.DOTALL)


@lru_cache(maxsize=8)
def protected_ids(tokenizer: StockTokenizer, protect: tuple[str, ...]) -> frozenset[int]:
    """Return the ids of every token that occurs in a protected word.

    A word is looked up as written, in lower case and capitalised, with and without a space before it. If the tokenizer
    splits it, all its pieces are protected wherever they occur: too many tokens are strict rather than too few. The
    class ``numbers`` also includes every token with a digit, and ``negations`` the stems that tokenizers cut from
    contractions ("isn" of "isn't") where they are one token.

    Args:
        tokenizer: of the target.
        protect: words, or names of :data:`CLASSES`.
    """
    found: set[int] = set()
    for entry in protect:
        for word in CLASSES.get(entry, (entry,)):
            for ids in _spellings(tokenizer, word):
                found.update(ids)
    if "negations" in protect:
        for stem in _STEMS.split():
            for ids in _spellings(tokenizer, stem):
                found.update(ids if len(ids) == 1 else ())
    if "numbers" in protect:
        found |= {index for token, index in tokenizer.get_vocab().items() if _NUMERIC.fullmatch(token)}
    return frozenset(found - set(tokenizer.all_special_ids) - {tokenizer.unk_token_id})


def _spellings(tokenizer: StockTokenizer, word: str) -> Iterator[list[int]]:
    for text in {word, word.lower(), word.capitalize()}:
        for spelt in (text, f" {text}"):
            yield tokenizer.encode(spelt, add_special_tokens=False)
