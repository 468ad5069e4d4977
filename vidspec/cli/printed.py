"""How a result goes to stdout, and what is said meanwhile to stderr, for commands that look and measure."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Form", "facts_table", "print_csv", "print_facts", "print_json", "say"]


class Form(str, Enum):
    """How a report is written."""

    text = "text"
    json = "json"
    csv = "csv"
    markdown = "markdown"


def say(text: str) -> None:
    """What is done next, or was done beside the result."""
    print(text, file=sys.stderr, flush=True)


def print_json(content: Any) -> None:
    print(json.dumps(content, ensure_ascii=False, indent=2))


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *rows])


def print_facts(facts: Mapping[str, Any]) -> None:
    """What the figures depend on, in one line."""
    print(", ".join(f"{key} {value}" for key, value in facts.items()))


def facts_table(rows: Iterable[tuple[str, str]]) -> Console:
    """Print labels and values; returns what they were printed on."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(Text(label), Text(value))
    console = Console()
    console.print(table)
    return console
