import pytest

from vidspec.display.panel import LINES, MOST, draw_bars
from vidspec.events.events import Round


def passes(*accepted):
    first = Round((1,), ("target",), 0, 0, 0.0)
    return [first, *(Round((1,), ("draft",), 8, count, 1.0, 0.1, 0.1) for count in accepted)]


def test_a_bar_for_each_pass_as_high_as_its_accepted_tokens():
    lines = [line.plain for line in draw_bars(passes(8, 4, 0), 60)]
    assert [line[17:].rstrip() for line in lines] == ["█", "█ ▄", "█ █ ▁"]
    assert [line[:17].rstrip() for line in lines] == ["accepted tokens", "per pass", "mean 4.0"]


def test_the_last_passes_are_shown_and_the_scale_stays():
    lines = [line.plain[17:].split() for line in draw_bars(passes(12, *[3] * 200), 200)]
    assert len(lines[2]) == MOST and not lines[0] and not lines[1], "a full bar is still twelve tokens"


@pytest.mark.parametrize("width", [1, 17, 18, 19, 40, 200])
@pytest.mark.parametrize("count", [0, 1, 100])
def test_they_fit(width, count):
    lines = draw_bars(passes(*range(count)), width, ascii_only=width == 40)
    assert len(lines) == LINES and all(line.cell_len <= width for line in lines)
    assert width != 40 or all(line.plain.isascii() for line in lines)


def test_passes_without_a_draft_have_no_bar():
    plain = [Round((1,), ("target",), 0, 0, 0.0)] * 3
    assert [line.plain.rstrip() for line in draw_bars(plain, 60)] == ["accepted tokens", "per pass", ""]
