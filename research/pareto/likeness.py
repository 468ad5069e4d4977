"""Similarity of a caption to a reference: ROUGE-L of the texts, edit distance of the token ids. No ground truth."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

_WORD = re.compile(r"[^\W_]+")


def rouge_l(text: str, reference: str) -> float:
    """Return F1 of the longest common subsequence of words (Lin 2004, ROUGE, section 3.1, with beta 1).

    Words are runs of letters and digits in lower case, not stemmed: for English text the figure is ``fmeasure`` of
    ``rougeL`` in Google's ``rouge-score``. Letters that are not English are kept, where ``rouge-score`` drops them.

    Returns:
        from 0 (no word in common) to 1 (the same words in the same order); 1 for two texts without words.
    """
    words, wanted = _WORD.findall(text.lower()), _WORD.findall(reference.lower())
    if not words and not wanted:
        return 1.0
    return 2 * _in_common(words, wanted) / (len(words) + len(wanted))


def edit_distance(token_ids: Sequence[int], reference: Sequence[int]) -> float:
    """Return the Levenshtein distance (insertions, deletions, replacements) over the longer length.

    Returns:
        from 0 (identical) to 1; 0 for two empty sequences.
    """
    longest = max(len(token_ids), len(reference))
    return _edits(token_ids, reference) / longest if longest else 0.0


def _in_common(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Return the length of the longest common subsequence."""
    above = [0] * (len(other) + 1)
    for left in one:
        row = [0]
        for place, right in enumerate(other):
            row.append(above[place] + 1 if left == right else max(row[-1], above[place + 1]))
        above = row
    return above[-1]


def _edits(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Return the Levenshtein distance."""
    above = list(range(len(other) + 1))
    for left in one:
        row = [above[0] + 1]
        for place, right in enumerate(other):
            row.append(min(above[place] + (left != right), above[place + 1] + 1, row[-1] + 1))
        above = row
    return above[-1]
