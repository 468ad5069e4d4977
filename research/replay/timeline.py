"""Text timeline of a simulated run: two lanes of characters for target and draft, with wasted work marked."""

from __future__ import annotations

from rich.text import Text

from research.replay.virtual import Block, Run
from vidspec.display.lanes import ACCEPTED, LANE, WAITING, WASTED, LaneGlyphs


def timeline(
    run: Run, *, width: int, strips: int = 3, glyphs: LaneGlyphs | None = None, unit: str = "ms"
) -> list[Text]:
    """Return lines for a terminal: ``strips`` pairs of lanes, from the first token on, and a legend.

    A draft pass is a mark, followed by a line for its time; a target pass is a line labelled with its rows and the
    tokens it emitted. ``width``: columns, at least 40. ``unit``: of the run's times, for the legend.
    """
    glyphs = glyphs or LaneGlyphs()
    columns = max(width, 40) - LANE
    begin = run.times[0]
    step = _scale(run)
    end = min(run.times[-1], begin + step * columns * strips)
    lanes = {lane: _Lane(max(1, round((end - begin) / step)), glyphs) for lane in ("target", "draft")}
    for block in run.blocks:
        if block.end > begin and block.start < end and block.kind in ("draft", "verify"):
            first = round((block.start - begin) / step)
            last = max(round((block.end - begin) / step), first + 1)
            lanes[block.worker].draw(first, last, *_looks(run, block, glyphs))
    lines: list[Text] = []
    for start in range(0, lanes["target"].length, columns):
        if lines:
            lines.append(Text(""))
        for name, lane in lanes.items():
            lines.append(Text(f"{name:<{LANE}}") + lane.strip(start, start + columns))
    legend = Text.assemble(
        (f"{glyphs.accepted} accepted", ACCEPTED),
        "  ",
        (f"{glyphs.wasted} wasted", WASTED),
        "  ",
        (f"{glyphs.waiting} waiting", WAITING),
        f"  one column = {step:.3g} {unit}",
    )
    return [*lines, Text(""), legend]


class _Lane:
    """One line of cells; undrawn cells are waiting time."""

    def __init__(self, length: int, glyphs: LaneGlyphs) -> None:
        self.length = length
        self.cells = [(glyphs.waiting, WAITING)] * length

    def draw(self, first: int, last: int, text: str, style: str, fill: str) -> None:
        """Draw ``text`` from cell ``first`` on, then ``fill`` up to ``last``."""
        for i in range(max(first, 0), min(last, self.length)):
            self.cells[i] = (text[i - first] if i - first < len(text) else fill, style)

    def strip(self, start: int, stop: int) -> Text:
        line = Text()
        for glyph, style in self.cells[start:stop]:
            line.append(glyph, style)
        return line


def _scale(run: Run) -> float:
    """Return the time per column: two columns per draft pass, at most 30 per target pass."""
    drafts = [block.end - block.start for block in run.blocks if block.kind == "draft"]
    passes = [block.end - block.start for block in run.blocks if block.kind == "verify"]
    longest = max(passes, default=1.0)
    finest = min((time for time in drafts if time > 0), default=longest / 10) / 2
    return max(finest, longest / 30) or 1.0


def _looks(run: Run, block: Block, glyphs: LaneGlyphs) -> tuple[str, str, str]:
    """Return label, style and filling of a block."""
    if block.kind == "draft":
        kept = any(one.holds(block.epoch, block.position) for one in run.rounds)
        return (glyphs.accepted, ACCEPTED, glyphs.line) if kept else (glyphs.wasted, WASTED, glyphs.line)
    outcome = next((one for one in run.rounds[1:] if one.start == block.position), None)
    if outcome is None:
        return glyphs.edge, WAITING, glyphs.line
    label = f"{glyphs.edge}{block.rows} row{'s' if block.rows > 1 else ''} +{len(outcome.token_ids)}"
    return label, WASTED if outcome.origins[-1] == "correction" else ACCEPTED, glyphs.line
