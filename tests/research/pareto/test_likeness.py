"""ROUGE-L and edit distance on examples done by hand, and ROUGE-L beside the figures of Google's ``rouge-score``."""

from __future__ import annotations

import pytest

from research.pareto.likeness import edit_distance, rouge_l


@pytest.mark.parametrize(
    "text, reference, expected",
    [
        ("the cat sat on the mat", "the cat lay on a mat", 2 * 4 / 12),  # the cat on mat
        ("a b c d", "d c b a", 2 * 1 / 8),
        ("a b", "a x b y", 2 * 2 / 6),
        ("A red circle, at the Top-left.", "a blue circle at the top left", 2 * 6 / 14),  # rouge-score: 0.857142...
        ("don't a1 b_c", "dont a1 b c", 2 * 3 / 9),
        ("ein Bär", "Ein BÄR!", 1.0),
        ("", "a b", 0.0),
        ("", ".", 1.0),
    ],
)
def test_rouge_l(text, reference, expected):
    assert rouge_l(text, reference) == pytest.approx(expected) == rouge_l(reference, text)


@pytest.mark.parametrize(
    "token_ids, reference, expected",
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 0.0),
        ([1, 2, 3, 4], [1, 9, 3, 4], 1 / 4),
        ([1, 3, 4], [1, 2, 3, 4], 1 / 4),
        ([5, 1, 2, 3], [1, 2, 3], 1 / 4),
        ([1, 2], [2, 1], 2 / 2),
        ([300, 70_000], [300, 70_001], 1 / 2),
        ([], [1, 2], 1.0),
        ([], [], 0.0),
    ],
)
def test_edit_distance(token_ids, reference, expected):
    assert edit_distance(token_ids, reference) == expected == edit_distance(reference, token_ids)
