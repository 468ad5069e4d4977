"""Draws the last rounds of the parallel schedule as two lanes: work and waiting of target and draft."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from vidspec.display.figures import time
from vidspec.events.events import Round

#: Most rounds shown.
ROUNDS = 12
#: Styles of accepted work, wasted work and waiting.
ACCEPTED, WASTED, WAITING = "green", "red", "dim"
#: Columns of a lane's name.
LANE = len("target ")


#: Characters of accepted and wasted work, of a pass, its beginning and of waiting; those for terminals without boxes.
GLYPHS, ASCII_GLYPHS = ("■", "□", "─", "├", "·"), ("#", "x", "-", "|", ".")


def draw_lanes(rounds: Sequence[Round], width: int, *, ascii_only: bool = False) -> list[Text]:
    """Return two lines, ``target`` and ``draft``, over the last rounds, and a legend.

    A round lasts from the end of the previous one to its own. The target's pass fills its beginning, red if it ended in
    a correction. The draft's passes fill their duration: first those whose tokens were emitted, then the wasted ones,
    in the proportion that this round decided; their real order is not known here. The rest is waiting. Empty before
    the first round after the prefill.

    Args:
        rounds: all rounds of the clip, in order.
        width: columns to draw in.
        ascii_only: for terminals without box characters.
    """
    first = max(1, len(rounds) - ROUNDS)
    begin = rounds[first - 1].elapsed if len(rounds) > 1 else 0.0
    span = rounds[-1].elapsed - begin if rounds else 0.0
    columns = width - LANE
    if columns < 1 or span <= 0:
        return []
    accepted, wasted, line, edge, idle = glyphs = ASCII_GLYPHS if ascii_only else GLYPHS
    target, draft = Text("target "), Text("draft  ")
    place = 0
    for before, one in zip(rounds[first - 1 :], rounds[first:], strict=False):
        end = round((one.elapsed - begin) / span * columns)
        room, seconds = end - place, one.elapsed - before.elapsed
        place = end
        if room < 1 or seconds <= 0:
            continue
        busy = min(room, max(1, round(one.verify_s / seconds * room)))
        corrected = "correction" in one.origins
        target.append(edge + line * (busy - 1), WASTED if corrected else ACCEPTED)
        target.append(idle * (room - busy), WAITING)
        busy = min(room, round(one.draft_s / seconds * room))
        vain = round(busy * one.wasted / one.drafted) if one.drafted else 0
        draft.append(accepted * (busy - vain), ACCEPTED)
        draft.append(wasted * vain, WASTED)
        draft.append(idle * (room - busy), WAITING)
    return [target, draft, _legend(glyphs, span)]


def _legend(glyphs: tuple[str, str, str, str, str], span: float) -> Text:
    accepted, wasted, line, edge, idle = glyphs
    return Text.assemble(
        (f"{edge}{line} pass", ACCEPTED),
        "  ",
        (f"{accepted} drafted", ACCEPTED),
        "  ",
        (f"{wasted} wasted", WASTED),
        "  ",
        (f"{idle} waiting", WAITING),
        f"  last {time(span)}",
    )
