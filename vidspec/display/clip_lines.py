"""Draws one line per clip in flight: its phase, its progress and the end of its text. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from vidspec.display.state import PanelState
from vidspec.escaping import one_line
from vidspec.events.tally import format_duration

#: Columns between the clip's name and its text, in order, and their widths.
COLUMNS = {"phase": 8, "tokens": 6, "accepted": 8, "time": 7}
#: Order in which columns are dropped on a narrow terminal, after the text.
DROPPED_FIRST = ("accepted", "time", "tokens", "phase")
#: Least and greatest width of a name, and least width of the text.
NAME, LONGEST_NAME, WORDS = 12, 24, 12
GAP = 2
#: Short names of :attr:`PanelState.phase` that fit the column.
PHASES = {"reading frames": "reading", "vision and prefill": "prefill"}
STYLES = {"reading": "dim", "prefill": "cyan", "decoding": "green"}


def clip_lines(
    states: Sequence[PanelState], *, now: float, width: int, lines: int, ascii_only: bool = False
) -> list[Text]:
    """Return one line per clip, and a count of the clips for which there is no room.

    Args:
        states: the clips in the order shown.
        now: the current time on the clock of ``began``.
        width: columns of a line; a narrow line drops the text first, then the share of accepted draft tokens.
        lines: maximum number of lines.
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
    """Return the headings of :func:`clip_lines`."""
    name, columns, words = _columns(width)
    text = Text(_pad("clip", name), style="dim")
    for column in columns:
        text.append(" " * GAP + _align(column, column))
    if words:
        text.append(" " * GAP + "text")
    text.truncate(width)
    return text


def _line(state: PanelState, now: float, width: int, ascii_only: bool) -> Text:
    name, columns, words = _columns(width)
    phase, counts = PHASES.get(state.phase, state.phase), state.counts
    values = {
        "phase": phase,
        "tokens": str(counts.emitted) if state.rounds else "",
        "accepted": f"{counts.accepted / counts.drafted:.0%}" if counts.drafted else "",
        "time": format_duration(max(0.0, now - state.began)),
    }
    line = Text(_pad(_clip_start(_name(state.path), name, ascii_only), name))
    for column in columns:
        line.append(" " * GAP)
        line.append(_align(values[column], column), style=STYLES.get(phase, "") if column == "phase" else "")
    if words:
        line.append(" " * GAP)
        line.append(_clip_start(_text_tail(state, words), words, ascii_only, whole=True), style="dim")
    line.truncate(width)  # a text can be wider than the sum of its characters
    line.rstrip()
    return line


def _columns(width: int) -> tuple[int, list[str], int]:
    """Fit the columns into ``width``; return the name's width, the columns that follow it, and the text's width."""
    kept = list(COLUMNS)
    for column in DROPPED_FIRST:
        if _columns_width(kept) + NAME <= width:
            break
        kept.remove(column)
    left = width - _columns_width(kept)
    if len(kept) < len(COLUMNS) or left < NAME + GAP + WORDS:
        return max(0, min(left, LONGEST_NAME)), kept, 0
    name = min(LONGEST_NAME, max(NAME, (left - GAP) * 2 // 5))
    return name, kept, left - GAP - name


def _columns_width(columns: Sequence[str]) -> int:
    return sum(GAP + COLUMNS[column] for column in columns)


def _name(path: str) -> str:
    return one_line(os.path.basename(path) or path)


def _text_tail(state: PanelState, columns: int) -> str:
    """Return the end of the text so far on one line, at least ``columns`` long if there is that much."""
    text = ""
    for one in reversed(state.rounds):
        text = "".join(one.texts) + text
        if len(text) > 4 * columns:  # blanks are collapsed below
            break
    return one_line(" ".join(text.split()))


def _clip_start(text: str, columns: int, ascii_only: bool, *, whole: bool = False) -> str:
    """Return the end of ``text`` that fits, with a mark if it is cut; if ``whole``, cut at a word boundary."""
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


def _pad(text: str, columns: int) -> str:
    return text + " " * (columns - cell_len(text))


def _align(text: str, column: str) -> str:
    return text.ljust(COLUMNS[column]) if column == "phase" else text.rjust(COLUMNS[column])
