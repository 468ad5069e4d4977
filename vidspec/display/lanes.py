"""Draws the last rounds of the parallel schedule as two lanes: work and waiting of target and draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from vidspec.display.figures import time
from vidspec.events.events import Round

#: Most rounds shown.
ROUNDS = 12
#: Styles of accepted work, wasted work and waiting.
ACCEPTED, WASTED, WAITING = "green", "red", "dim"
#: Columns of a lane's name.
LANE = len("target ")


@dataclass(frozen=True)
class LaneGlyphs:
    """Characters of the lanes."""

    accepted: str = "■"
    wasted: str = "□"
    line: str = "─"
    edge: str = "├"
    waiting: str = "·"

    @classmethod
    def ascii(cls) -> LaneGlyphs:
        """Return glyphs for terminals without box characters."""
        return cls("#", "x", "-", "|", ".")


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
    glyphs = LaneGlyphs.ascii() if ascii_only else LaneGlyphs()
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
        target.append(glyphs.edge + glyphs.line * (busy - 1), WASTED if corrected else ACCEPTED)
        target.append(glyphs.waiting * (room - busy), WAITING)
        busy = min(room, round(one.draft_s / seconds * room))
        vain = round(busy * one.wasted / one.drafted) if one.drafted else 0
        draft.append(glyphs.accepted * (busy - vain), ACCEPTED)
        draft.append(glyphs.wasted * vain, WASTED)
        draft.append(glyphs.waiting * (room - busy), WAITING)
    return [target, draft, _legend(glyphs, span)]


def _legend(glyphs: LaneGlyphs, span: float) -> Text:
    return Text.assemble(
        (f"{glyphs.edge}{glyphs.line} pass", ACCEPTED),
        "  ",
        (f"{glyphs.accepted} drafted", ACCEPTED),
        "  ",
        (f"{glyphs.wasted} wasted", WASTED),
        "  ",
        (f"{glyphs.waiting} waiting", WAITING),
        f"  last {time(span)}",
    )
