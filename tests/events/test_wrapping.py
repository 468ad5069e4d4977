import random

import pytest

from vidspec.events.wrapping import WordWrap, wrap_text

TEXT = "The video shows three objects on a checkered background.\n\nThe first  is a small cyan circle, 一つ目.\n"


@pytest.mark.parametrize("width", [1, 8, 20, 70, 200])
def test_lines_are_broken_between_words(width):
    lines = wrap_text(TEXT, width).splitlines()
    assert " ".join(lines).split() == TEXT.split(), "no word is broken, none is lost"
    assert all(len(line) <= width or " " not in line for line in lines)
    assert width < 200 or wrap_text(TEXT, width) == TEXT


@pytest.mark.parametrize("seed", range(20))
def test_pieces_are_broken_as_the_whole(seed):
    draw, wrap, out, at = random.Random(seed), WordWrap(20), "", 0
    while at < len(TEXT):
        size = draw.randint(1, 7)
        out += wrap.add(TEXT[at : at + size])
        at += size
    assert out + wrap.end() == wrap_text(TEXT, 20)


def test_wide_characters_and_tabs_take_their_columns():
    assert wrap_text("一二三 四五六", 12) == "一二三\n四五六" and wrap_text("一二三 四五六", 13) == "一二三 四五六"
    assert wrap_text("a\tbc", 9) == "a\nbc" and wrap_text("a\tbc", 10) == "a\tbc"


def test_a_word_wider_than_a_line_is_left_to_the_terminal_at_once():
    wrap = WordWrap(8)
    assert wrap.add("0123456789") == "0123456789" and wrap.add("ab c") == "ab" and wrap.end() == " c"
