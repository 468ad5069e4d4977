"""Where two captions differ."""

from hypothesis import given
from hypothesis import strategies as st

from vidspec.display.pages.side_by_side import differences

TEXTS = st.text("ab .,\n", max_size=30)


@given(TEXTS, TEXTS)
def test_all_of_both_is_shown_and_what_is_not_marked_is_the_same(left, right):
    sides = differences(left, right)
    assert tuple("".join(text for text, _ in side) for side in sides) == (left, right)
    kept = ["".join(text for text, only in side if not only).split() for side in sides]
    assert "".join(kept[0]) == "".join(kept[1])
    if left == right:
        assert not any(only for side in sides for _, only in side)


def test_words_are_marked_whole():
    assert differences("A red circle moves.", "A blue circle moves!") == (
        [("A ", False), ("red ", True), ("circle moves", False), (".", True)],
        [("A ", False), ("blue ", True), ("circle moves", False), ("!", True)],
    )
