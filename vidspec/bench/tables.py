"""Markdown tables and the format of figures in their cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import shorten

__all__ = ["bullets", "cell", "facts_line", "heading", "inverted", "left_out_rows", "spread", "table"]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; each row has as many cells as the header."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return "\n".join([first, "|---" * len(header) + "|", *others])


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
    """Return facts about the machine in one line."""
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def cell(value: float | None, form: str = ".2f", unit: str = "") -> str:
    """Format a figure; a dash for None."""
    return "-" if value is None else f"{value:{form}}{unit}"


def inverted(values: Sequence[float]) -> tuple[float, float, float]:
    """Return speed-ups (median, least, greatest) as ratios of times, in the same order."""
    middle, least, greatest = values
    return 1 / middle, 1 / greatest, 1 / least


def spread(values: Sequence[float] | None, form: str = ".2f", unit: str = "x") -> str:
    """Format a figure with its minimum and maximum as ``2.00x (1.50-2.50)``; a dash for None."""
    if values is None:
        return "-"
    middle, least, greatest = values
    return f"{middle:{form}}{unit} ({least:{form}}-{greatest:{form}})"
