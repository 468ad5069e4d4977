"""Draws clips in flight, a line for each: what is being done, how far it is, the last words of its text. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from vidspec.display.state import PanelState
from vidspec.escaping import one_line
from vidspec.events.tally import format_duration

__all__ = ["clip_lines", "headings"]

#: What a line says between the clip's name and its words, as they stand, with the columns each takes.
COLUMNS = {"phase": 8, "tokens": 6, "accepted": 8, "time": 7}
#: What goes first where a terminal is narrow, after the words.
DROPPED_FIRST = ("accepted", "time", "tokens", "phase")
#: Columns of a name, at least and at most, and of the words, at least.
NAME, LONGEST_NAME, WORDS = 12, 24, 12
GAP = 2
#: The states of :attr:`PanelState.phase` in a column's width.
PHASES = {"reading frames": "reading", "vision and prefill": "prefill"}
STYLES = {"reading": "dim", "prefill": "cyan", "decoding": "green"}


def clip_lines(
    states: Sequence[PanelState], *, now: float, width: int, lines: int, ascii_only: bool = False
) -> list[Text]:
    """A line for each clip, as many as there is room for, and how many more there are.

    Args:
        states: the clips, in the order in which they are shown.
        now: the time that their ``began`` is measured in.
        width: columns of a line; the words go first where they are few, then the share of accepted draft tokens.
        lines: how many there may be.
        ascii_only: for terminals without an ellipsis.
    """
    if lines < 1:
        return []
    fits = len(states) if len(states) <= lines else lines - 1
    drawn = [_line(state, now, width, ascii_only) for state in states[:fits]]
    if fits < len(states):
        more = Text(f"{'and ' if fits else ''}{len(states) - fits} {'more ' if fits else ''}in flight", style="dim")
        more.truncate(width)
        drawn.append(more)
    return drawn


def headings(width: int) -> Text:
    """What stands above the columns of :func:`clip_lines`."""
    name, columns, words = _columns(width)
    text = Text(_padded("clip", name), style="dim")
    for column in columns:
        text.append(" " * GAP + _aligned(column, column))
    if words:
        text.append(" " * GAP + "text")
    text.truncate(width)
    return text


def _line(state: PanelState, now: float, width: int, ascii_only: bool) -> Text:
    name, columns, words = _columns(width)
    phase = PHASES.get(state.phase, state.phase)
    facts = {
        "phase": phase,
        "tokens": str(state.emitted) if state.rounds else "",
        "accepted": f"{state.accepted / state.drafted:.0%}" if state.drafted else "",
        "time": format_duration(max(0.0, now - state.began)),
    }
    line = Text(_padded(_end(_name(state.path), name, ascii_only), name))
    for column in columns:
        line.append(" " * GAP)
        line.append(_aligned(facts[column], column), style=STYLES.get(phase, "") if column == "phase" else "")
    if words:
        line.append(" " * GAP)
        line.append(_end(_said(state, words), words, ascii_only, whole=True), style="dim")
    line.truncate(width)  # a text may be wider than the sum of its characters
    line.rstrip()
    return line


def _columns(width: int) -> tuple[int, list[str], int]:
    """Columns of the name, what follows it, and columns of the words: what fits into ``width``."""
    kept = list(COLUMNS)
    for column in DROPPED_FIRST:
        if _taken(kept) + NAME <= width:
            break
        kept.remove(column)
    left = width - _taken(kept)
    if len(kept) < len(COLUMNS) or left < NAME + GAP + WORDS:
        return max(0, min(left, LONGEST_NAME)), kept, 0
    name = min(LONGEST_NAME, max(NAME, (left - GAP) * 2 // 5))
    return name, kept, left - GAP - name


def _taken(columns: Sequence[str]) -> int:
    return sum(GAP + COLUMNS[column] for column in columns)


def _name(path: str) -> str:
    return one_line(os.path.basename(path) or path)


def _said(state: PanelState, columns: int) -> str:
    """The end of the text so far, on one line, at least ``columns`` long if there is as much."""
    text = ""
    for one in reversed(state.rounds):
        text = "".join(one.texts) + text
        if len(text) > 4 * columns:  # blanks may go
            break
    return one_line(" ".join(text.split()))


def _end(text: str, columns: int, ascii_only: bool, *, whole: bool = False) -> str:
    """The end of ``text`` that fits, marked where it begins in the middle; from a word's beginning if ``whole``."""
    if cell_len(text) <= columns:
        return text
    mark = "..." if ascii_only else "…"
    room, start = columns - cell_len(mark), len(text)
    while start and (room := room - cell_len(text[start - 1])) >= 0:
        start -= 1
    end = text[start:]
    if whole and text[start - 1] != " " and " " in end:
        end = end[end.index(" ") + 1 :]
    return mark + end.lstrip() if columns >= cell_len(mark) else ""


def _padded(text: str, columns: int) -> str:
    return text + " " * (columns - cell_len(text))


def _aligned(text: str, column: str) -> str:
    return text.ljust(COLUMNS[column]) if column == "phase" else text.rjust(COLUMNS[column])
