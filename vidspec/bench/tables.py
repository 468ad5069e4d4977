"""Tables, as Markdown and aligned on a terminal, and the format of figures in their cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import shorten
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

__all__ = ["aligned_markdown", "bullets", "cell", "facts_line", "heading", "left_out_rows", "spread", "table"]

#: Columns between two columns of an aligned table, and the most of a cell, which goes on in the next line.
GAP, CELL = 2, 32
NUMBER = re.compile(r"-|[\d.,]+[%x]?")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; each row has as many cells as the header."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return "\n".join([first, "|---" * len(header) + "|", *others])


def aligned(
    header: Sequence[str], rows: Sequence[Sequence[Text]], width: int, *, title: str = "", bold: str = ""
) -> Group:
    """Return a table with aligned columns for a terminal.

    Columns that do not fit beside the first follow in a table of their own below, beside the first again. A column of
    plain numbers is aligned on the right.

    Args:
        header: the headings.
        rows: cells; each row has as many as the header.
        width: columns of the terminal.
        title: above the table.
        bold: first cell of the row in bold type, if any.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    columns = list(zip(*rows, strict=True)) or [()] * len(header)
    widths = [
        min(width, max(_heading_width(head), *(min(CELL, cell.cell_len) for cell in column), 0))
        for head, column in zip(header, columns, strict=True)
    ]
    blocks: list[list[int]] = []
    for at in range(1, len(header)):
        if not blocks or sum(widths[one] + GAP for one in (0, *blocks[-1], at)) - GAP > width:
            blocks.append([])
        blocks[-1].append(at)
    drawn: list[RenderableType] = [Text(title, style="italic")] if title else []
    for number, block in enumerate(blocks or [[]]):
        drawn += [Text()] * (number > 0)
        grid = Table(box=None, padding=(0, GAP, 0, 0), header_style="bold", pad_edge=False)
        for at in (0, *block):
            right = at and all(NUMBER.fullmatch(cell.plain) for cell in columns[at])
            justify: Literal["left", "right"] = "right" if right else "left"
            grid.add_column(Text(header[at]), width=widths[at], justify=justify, overflow="fold")
        for row in rows:
            cells = [row[at] for at in (0, *block)]
            grid.add_row(*cells, style="bold" if row[0].plain == bold else None)
        drawn.append(grid)
    return Group(*drawn)


def _heading_width(text: str) -> int:
    """Return the columns of a heading on about two lines."""
    return max(-(-len(text) // 2), *(len(word) for word in text.split()), 0)


def aligned_markdown(text: str, width: int) -> Iterator[RenderableType]:
    """Yield the tables of Markdown, aligned, and the text between them."""
    from rich.text import Text

    for tabular, lines in groupby(text.split("\n"), key=lambda line: line.startswith("|")):
        if not tabular:
            yield Text("\n".join(lines))
            continue
        header, _, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines)
        yield aligned(header, [[Text(cell.replace("\\|", "|")) for cell in row] for row in rows], width)


def heading(others: Iterable[Sequence[str]]) -> str:
    """Return the heading of the column of methods; it explains alternative names if there are any."""
    return "method (= its other names: measured once)" if any(others) else "method"


def left_out_rows(why: Mapping[str, str], cells: int) -> list[list[str]]:
    """Return rows of ``cells`` cells with the reasons for missing methods, by name."""
    reasons = {name: text.removeprefix(f"{name}: ").replace("|", "\\|") for name, text in why.items()}
    return [
        [name, shorten(f"left out: {text}", 160, placeholder=" ..."), *"-" * (cells - 2)]
        for name, text in reasons.items()
    ]


def bullets(notes: Iterable[str]) -> str:
    """Return notes below a table, with the empty line that separates them from it."""
    return "\n".join(["", *(f"- {note}" for note in notes)])


def facts_line(facts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def cell(value: float | None, form: str = ".2f", unit: str = "") -> str:
    """Format a figure; a dash for None."""
    return "-" if value is None else f"{value:{form}}{unit}"


def spread(values: Sequence[float] | None, form: str = ".2f", unit: str = "x") -> str:
    """Format a figure with its minimum and maximum as ``2.00x (1.50-2.50)``; a dash for None."""
    if values is None:
        return "-"
    middle, least, greatest = values
    return f"{middle:{form}}{unit} ({least:{form}}-{greatest:{form}})"
