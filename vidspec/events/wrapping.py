"""Wraps text for a terminal between words, whole or piece by piece as it is generated."""

from __future__ import annotations

import os
import re
from typing import TextIO

from rich.cells import cell_len

#: Columns between two tab stops of a terminal.
TAB = 8


class WordWrap:
    """Wraps a text that arrives in pieces.

    A word is released when it is complete, so that it stands on one line; a word wider than a line is left to the
    terminal.

    Args:
        width: columns of the terminal.
    """

    def __init__(self, width: int) -> None:
        self.width = max(1, width)
        self._column = 0
        self._pending = ""  # blanks, and the beginning of the word after them

    def add(self, piece: str) -> str:
        """Add a piece and return the text that can be written."""
        *complete, self._pending = re.split(r"(?<=\S)(?=\s)", self._pending + piece)
        if cell_len(self._pending) >= self.width:
            complete, self._pending = [*complete, self._pending], ""
        return "".join(map(self._place_word, complete))

    def end(self) -> str:
        """Return the rest; the next piece starts another text on its own line."""
        out = self._place_word(self._pending)
        self._pending, self._column = "", 0
        return out

    def _place_word(self, part: str) -> str:
        """Return blanks and a word; a line break replaces the blanks if the word does not fit."""
        word = part.lstrip()
        blanks = part[: len(part) - len(word)]
        if "\n" in blanks:
            self._column = 0
        column = self._column
        for blank in blanks.rpartition("\n")[2]:
            column += TAB - column % TAB if blank == "\t" else 1
        if word and blanks and self._column and column + cell_len(word) > self.width:
            blanks, column = "\n", 0
        self._column = column + cell_len(word)
        if self._column > self.width:
            self._column = (self._column - 1) % self.width + 1
        return blanks + word


def wrap_text(text: str, width: int) -> str:
    """Wrap ``text`` for a terminal of ``width`` columns.

    >>> wrap_text("one two three", 8)
    'one two\\nthree'
    """
    wrap = WordWrap(width)
    return wrap.add(text) + wrap.end()


def terminal_columns(terminal: TextIO) -> int:
    """Return the width of the terminal of a stream; 80 if unknown."""
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(terminal.fileno()).columns) or 80
    except (OSError, ValueError):
        return 80
