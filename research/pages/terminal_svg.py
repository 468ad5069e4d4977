"""Small SVG pictures of a terminal, still or animated. Blocks are paths; a line that stays is drawn once."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import groupby
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME

#: Pixels of a cell, of the font and of the margin.
WIDE, HIGH, FONT, MARGIN = 8, 18, 13, 10
BACKGROUND, FOREGROUND = "#15181d", "#d6d9de"
FAMILY = "ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace"
EIGHTHS = " ▁▂▃▄▅▆▇█"
#: Spaces that SVG would collapse.
_SPACES = re.compile("  +")
#: A line of a screen: pieces of text and their styles.
Line = tuple[tuple[str, Style | None], ...]


@dataclass(frozen=True)
class Screen:
    """Lines that are shown for some seconds."""

    lines: tuple[Line, ...]
    seconds: float = 1.0


def screen_of(width: int, *drawn: RenderableType, seconds: float = 1.0) -> Screen:
    """Return the screen of a terminal after printing ``drawn``."""
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system="truecolor", highlight=False)
    lines: list[Line] = []
    for one in drawn:
        rendered = console.render_lines(one, console.options, pad=False)
        lines += [tuple((segment.text, segment.style) for segment in Segment.simplify(line)) for line in rendered]
    return Screen(tuple(lines), seconds)


def draw_terminal(screens: Sequence[Screen], width: int, title: str) -> str:
    """Return an SVG that shows the screens one after the other, again and again; the last one where motion is unwanted.

    Args:
        screens: at least one.
        width: columns.
        title: the text for those who cannot see it.
    """
    rows = max(len(one.lines) for one in screens)
    total = sum(one.seconds for one in screens)
    starts = [sum(one.seconds for one in screens[:at]) for at in range(len(screens) + 1)]
    groups: dict[tuple[int, int], list[tuple[int, Line]]] = defaultdict(list)  # by first screen, and the one after
    for row in range(rows):
        every = [one.lines[row] if row < len(one.lines) else () for one in screens]
        at = 0
        for line, same in groupby(every):
            count = len(list(same))
            groups[at, at + count].append((row, line))
            at += count
    style, body = [], []
    for (first, end), lines in sorted(groups.items()):
        if (first, end) == (0, len(screens)):
            body.append(_elements(lines))
            continue
        name = f"s{first}-{end}"
        shown = "" if end == len(screens) else "visibility:hidden;"
        frames = "0%{visibility:hidden}" if first else ""
        frames += f"{100 * starts[first] / total:.2f}%{{visibility:visible}}"
        frames += "" if end == len(screens) else f"{100 * starts[end] / total:.2f}%{{visibility:hidden}}"
        style.append(f".{name}{{{shown}animation:{name} {total:g}s step-end infinite}}@keyframes {name}{{{frames}}}")
        body.append(f'<g class="{name}">{_elements(lines)}</g>')
    wide, high = width * WIDE + 2 * MARGIN, rows * HIGH + 2 * MARGIN
    rules = (
        f"text{{font:{FONT}px {FAMILY}}}"
        "path{shape-rendering:crispEdges}.b{font-weight:700}.i{font-style:italic}.d{opacity:.65}"
        + "".join(style)
        + ("@media(prefers-reduced-motion:reduce){g{animation:none!important}}" if style else "")
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img"><title>{escape(title)}</title>'
        f'<style>{rules}</style><rect width="{wide}" height="{high}" rx="8" fill="{BACKGROUND}"/>'
        f'<g transform="translate({MARGIN} {MARGIN})" fill="{FOREGROUND}">{"".join(body)}</g></svg>\n'
    )


def _elements(lines: Sequence[tuple[int, Line]]) -> str:
    """Return the elements of numbered lines: a path for each colour of blocks and backgrounds, then the texts.

    Paths are in columns and eighths of a line.
    """
    paths: dict[str, list[str]] = defaultdict(list)
    texts: list[str] = []
    for row, line in lines:
        column = 0
        for text, style in line:
            ink, paper = _colour(style, "color") or FOREGROUND, _colour(style, "bgcolor")
            count = cell_len(text)
            if paper:
                paths[paper].append(f"M{column} {8 * row}h{count}v8h-{count}")
            if set(text) == {"▀"}:
                paths[ink].append(f"M{column} {8 * row}h{count}v4h-{count}")
            elif set(text) & set(EIGHTHS[1:]):
                for at, letter in enumerate(text):
                    if (high := EIGHTHS.find(letter)) > 0:
                        paths[ink].append(f"M{column + at} {8 * row + 8 - high}h1v{high}h-1")
            elif text.strip():
                texts.append(_text(text, style, column * WIDE, row * HIGH))
            column += count
    drawn = "".join(f'<path fill="{colour}" d="{"".join(pieces)}"/>' for colour, pieces in paths.items())
    return (f'<g transform="scale({WIDE} {HIGH / 8})">{drawn}</g>' if drawn else "") + "".join(texts)


def _text(text: str, style: Style | None, left: int, top: int) -> str:
    left += WIDE * (cell_len(text) - cell_len(text.lstrip()))
    text = text.strip()
    ink = _colour(style, "color")
    names = [name for name, has in zip("bid", _attributes(style), strict=True) if has]
    about = (f' fill="{ink}"' if ink else "") + (f' class="{" ".join(names)}"' if names else "")
    length = f' textLength="{cell_len(text) * WIDE}"' if len(text) > 1 else ""
    return f'<text x="{left}" y="{top + HIGH - 5}"{length}{about}>{escape(_SPACES.sub(_unbroken, text))}</text>'


def _unbroken(spaces: re.Match[str]) -> str:
    return "\N{NO-BREAK SPACE}" * len(spaces[0])


def _attributes(style: Style | None) -> tuple[bool, bool, bool]:
    return (bool(style.bold), bool(style.italic), bool(style.dim)) if style else (False, False, False)


def _colour(style: Style | None, side: str) -> str | None:
    colour = getattr(style, side, None)
    return None if colour is None or colour.is_default else str(colour.get_truecolor(SVG_EXPORT_THEME).hex)
