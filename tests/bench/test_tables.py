"""Tables of ``vidspec bench`` and ``vidspec profile`` on a terminal."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from vidspec.bench.tables import aligned, aligned_markdown, table

HEADER = ("method", "tau", "tokens / target pass", "decode")
ROWS = [("ar", "-", "1.00", "1.00x (0.98-1.02)"), ("sd-attention-chain", "12.50", "4.10", "2.50x (2.00-4.00)")]


def lines(part, width):
    out = io.StringIO()
    Console(file=out, width=width).print(part)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_numbers_are_right_aligned_and_headings_wrapped_between_words():
    drawn = lines(aligned(HEADER, [list(map(Text, row)) for row in ROWS], 80, title="Speeds"), 80)
    assert drawn == [
        "Speeds",
        "                             tokens /",
        "                               target",
        "method                tau        pass  decode",
        "ar                      -        1.00  1.00x (0.98-1.02)",
        "sd-attention-chain  12.50        4.10  2.50x (2.00-4.00)",
    ]


@pytest.mark.parametrize("width, tables", [(37, 2), (60, 1)])
def test_columns_that_do_not_fit_follow_beside_the_first(width, tables):
    drawn = lines(aligned(HEADER, [list(map(Text, row)) for row in ROWS], width), width)
    assert max(map(len, drawn)) <= width
    blocks = "\n".join(drawn).split("\n\n")
    assert len(blocks) == tables and all("ar " in block and "method" in block for block in blocks)
    text = "".join("".join(drawn).split())
    assert all(cell.split()[0] in text for row in ROWS for cell in row[1:] if cell != "-")


def test_the_markdown_of_a_bench_is_drawn_alike():
    text = f"{table(HEADER, ROWS)}\n\n- a note | with a bar"
    parts = list(aligned_markdown(text, 80))
    assert [line for part in parts for line in lines(part, 80)] == [
        *lines(aligned(HEADER, [list(map(Text, row)) for row in ROWS], 80), 80),
        "",
        "- a note | with a bar",
    ]


def test_a_long_cell_goes_on_in_the_next_line():
    drawn = lines(next(aligned_markdown(table(("method", "tau"), [("x", "left out: " + "reason " * 20)]), 60)), 60)
    assert max(map(len, drawn)) <= 60 and " ".join(drawn).count("reason") == 20
