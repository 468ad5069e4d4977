"""Draws the accepted tokens of the last passes as vertical bars. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from vidspec.events.counters import tau
from vidspec.events.events import Round

#: Lines of the bars, columns of the label, most bars.
LINES, LABEL, MOST = 3, 17, 40
#: A full bar is at least this many tokens.
LEAST_FULL = 4
BLOCKS, ASCII_BLOCKS = " ▁▂▃▄▅▆▇█", "  ...::##"
ACCEPTED, NONE = "green", "red"


def draw_bars(rounds: Sequence[Round], width: int, *, ascii_only: bool = False) -> list[Text]:
    """Return ``LINES`` lines: the mean of accepted tokens per pass, and a bar for each of the last passes.

    A full bar is the most tokens accepted in any pass so far; a pass without an accepted token has a short red mark.

    Args:
        rounds: all rounds of the clip, in order.
        width: columns to draw in.
        ascii_only: for terminals without block characters.
    """
    accepted = [one.accepted for one in rounds[1:] if one.drafted]
    mean = tau(accepted)
    label = ("accepted tokens", "per pass", "" if mean is None else f"mean {mean:.1f}")
    lines = [Text(text.ljust(LABEL)[:width], style="dim") for text in label]
    full = max(LEAST_FULL, *accepted, 0) if accepted else LEAST_FULL
    symbols = ASCII_BLOCKS if ascii_only else BLOCKS
    room = max(0, min(MOST, (width - LABEL + 1) // 2))
    for count in accepted[-room:] if room else []:
        eighths = max(1, round(count / full * 8 * LINES))
        for number, line in enumerate(lines):
            level = min(8, max(0, eighths - 8 * (LINES - 1 - number)))
            line.append(symbols[level] + " ", style=f"not dim {ACCEPTED if count else NONE}")
    for line in lines:
        line.truncate(width)
    return lines
