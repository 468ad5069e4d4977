"""The live panel of a clip: ``render_clip`` builds the Rich renderable, ``LivePanel`` keeps drawing it on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vidspec.display.heatmap import weight_lines
from vidspec.display.lanes import draw_lanes
from vidspec.display.state import ClipStates, PanelState
from vidspec.display.tiles import TileLayout, Tiles, fit_tiles, sight_sentence
from vidspec.escaping import escape_text, one_line
from vidspec.events.compare import tau
from vidspec.events.events import Event, Finished, Origin, Round
from vidspec.events.record import Caption
from vidspec.events.tally import counted

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True)
class PanelScreen:
    """Size and abilities of a terminal.

    Attributes:
        width, height: columns, and lines; a panel without a height is as high as its contents.
        ascii_only: no block characters, and so no tiles.
        coloured: at least 256 colours; without them there are no tiles.
        verbose: use the names of docs/research/metrics.md for figures, and show more of them.
    """

    width: int = 80
    height: int | None = None
    ascii_only: bool = False
    coloured: bool = True
    verbose: bool = False

    @classmethod
    def of(cls, console: Console, *, verbose: bool) -> PanelScreen:
        ascii_only = not console.encoding.lower().startswith("utf")
        coloured = not console.no_color and console.color_system in ("256", "truecolor")
        return cls(*console.size, ascii_only, coloured, verbose)


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


#: Colour and attribute of each origin. The attributes differ too, so that the five stay distinct under NO_COLOR.
STYLES: dict[Origin, str] = {
    "draft": "green",
    "block": "bright_green",  # no caption has both
    "correction": "bold red",
    "bonus": "italic cyan",
    "target": "dim",
    "loose": "underline yellow",
}
LABELS: dict[Origin, str] = {
    "draft": "draft accepted",
    "block": "block accepted",
    "correction": "corrected",
    "bonus": "bonus",
    "target": "target",
    "loose": "loosely accepted",
}
#: Most lines of the panel while a caption grows, with and without tiles.
MOST_LINES, MOST_PLAIN = 28, 20
#: Fewest columns for the caption beside the tiles instead of above them.
WIDE = 110
#: Fewest lines for a legend, for bars or lanes, and for tiles.
WITH_LEGEND, WITH_BARS, WITH_TILES = 10, 14, 17
#: Lines for tiles below a caption, by the fewest lines of the panel.
TILED = {29: 9, 21: 7, WITH_TILES: 5}
#: Fewest columns on which all usual figures, and the sentence on what the draft sees, fit into one line.
ONE_LINE, SENTENCE = 74, 66
#: Columns between a caption and the tiles beside it.
SIDE_GAP = 3

#: Note below a caption of the built-in models, which is meaningless for other video.
DEMO = Text(" built-in models: they know drawn shapes only ", style="bold black on yellow")


def render_clip(state: PanelState, screen: PanelScreen, *, caption: bool = True) -> RenderableType:
    """Return the panel for ``state``; pure.

    While the caption grows the height depends on the terminal only: a caption that does not fit shows its end. The
    final panel is as high as its contents.

    Args:
        state: the clip.
        screen: the columns and the most lines of the panel.
        caption: show the caption above its legend; without it only the legend.
    """
    width, height = screen.width, screen.height
    tiled = screen.coloured and not screen.ascii_only
    most = MOST_LINES if tiled else MOST_PLAIN
    inner, drawn = max(1, width - 4), min(most, height or most)
    below = _below(state, inner, drawn, screen)
    lines = drawn - 2 - len(below) - (1 if inner >= SENTENCE else 2)  # for caption and tiles
    beside = caption and width >= WIDE
    layout = _fit_tiles(state, inner // 2 if beside else inner, drawn, lines if beside else None) if tiled else None
    said = sight_sentence(state.opened, state.prefilled, layout.shown(state.opened) if layout else 0)
    sentence = _fixed_lines(_wrap_lines(Text(said, style="dim"), inner), 1 if inner >= SENTENCE else 2)
    tiles = Tiles(state.opened, state.prefilled, layout) if layout and state.opened else None
    side = layout.width + SIDE_GAP if layout and beside else 0
    if tiles and not side:
        lines -= tiles.layout.height
    growing = state.caption is None and height is not None
    legend = drawn >= WITH_LEGEND and state.drafts
    text = _caption_lines(state, inner - side, lines if growing else None, legend) if caption else []
    if legend and not caption:
        text = list(flow_columns(_legend(state), inner - side).split("\n"))
    body: list[RenderableType] = [*text, *([tiles] if tiles else [])]
    if tiles and side:
        table = Table.grid(padding=(0, SIDE_GAP, 0, 0))
        table.add_column(width=inner - side)
        table.add_row(Group(*text), tiles)
        body = [table]
    label = Text(one_line(state.path), style="bold", no_wrap=True, overflow="ellipsis")
    label.truncate(max(1, inner - 2), overflow="ellipsis")
    whose = DEMO if any(one is not None and one.demo for one in (state.opened, state.caption)) else None
    return Panel(
        Group(*body, *sentence, *below),
        title=label,
        subtitle=whose,
        title_align="left",
        border_style="bright_black",
        width=width,
    )


def _fit_tiles(state: PanelState, width: int, drawn: int, lines: int | None) -> TileLayout | None:
    """Return the layout of the tiles in ``lines`` lines, by default those that a panel of ``drawn`` lines has."""
    pictures = state.opened.thumbnails if state.opened else ()
    if not pictures or drawn < WITH_TILES:
        return None
    if lines is None:
        lines = next(count for least, count in TILED.items() if drawn >= least)
    return fit_tiles(pictures[0].columns / pictures[0].rows, len(pictures), width, lines)


def _below(state: PanelState, inner: int, drawn: int, screen: PanelScreen) -> list[Text]:
    """Return the lines below caption and tiles: bars or lanes, weights of an ensemble, figures."""
    below, bars, ascii_only = [], False, screen.ascii_only
    if drawn >= WITH_BARS and state.side_by_side:
        lanes = [line for line in draw_lanes(state.rounds, inner, ascii_only=ascii_only) if line.cell_len <= inner]
        below += _fixed_lines(lanes, LINES)
    elif drawn >= WITH_BARS and state.drafts:
        below += draw_bars(state.rounds, inner, ascii_only=ascii_only)
        bars = True
    if state.weights:
        below += flow_columns(weight_lines(state.weights, inner, ascii_only=ascii_only), inner).split("\n")
    return below + _figures(state, inner, screen, bars)


def _caption_lines(state: PanelState, width: int, lines: int | None, legend: bool) -> list[Text]:
    """Return the caption and its legend: whole, or exactly ``lines`` lines with the caption's end."""
    text = _wrap_lines(_caption_text(state), width)
    labels = list(flow_columns(_legend(state), width).split("\n")) if legend else []
    if lines is None:
        return text + labels
    room = max(1, lines - len(labels))
    return _fixed_lines(text[-room:], room) + labels


def _caption_text(state: PanelState) -> Text:
    text = Text()
    for piece, origin in state.pieces:
        text.append(escape_text(piece), style=STYLES[origin])
    if not text:
        text.append(f"{state.stage} ...", style="dim")
    return text


def _legend(state: PanelState) -> list[Text]:
    """Return the labels of the origins, those of blocks and of loosely accepted tokens only if there are any."""
    seen = {origin for _, origin in state.pieces}
    absent = {"draft" if "block" in seen else "block", *({"loose"} - seen)}
    return [Text(LABELS[origin], style=STYLES[origin]) for origin in STYLES if origin not in absent]


def _figures(state: PanelState, inner: int, screen: PanelScreen, bars: bool) -> list[Text]:
    """Return the figures on a fixed number of lines. ``bars``: those of accepted tokens are shown with their mean."""
    count = 1 if inner >= ONE_LINE and not screen.verbose and not state.side_by_side else 2
    lines = flow_columns([Text(fact) for fact in _facts(state, screen.verbose, bars)], inner).split("\n")[:count]
    for line in lines:
        line.truncate(inner, overflow="crop" if screen.ascii_only else "ellipsis")
    return _fixed_lines(lines, count)


def _facts(state: PanelState, verbose: bool, bars: bool) -> list[str]:
    counts = state.counts
    facts = [state.profile, state.phase, counted(counts.emitted, "token")]
    if state.tau is not None and (verbose or not bars):
        facts.append(f"tau {state.tau:.2f}" if verbose else f"{state.tau:.1f} accepted tokens per pass")
    if verbose:
        facts += [f"accepted {counts.accepted}/{counts.drafted}"] if counts.drafted else []
        facts.append(f"{counts.target_forwards} target passes")
    if state.side_by_side:
        facts.append(f"{'gamma' if verbose else 'window'} {state.rounds[-1].gamma}")
        wasted, aborted = sum(one.wasted for one in state.rounds), sum(one.aborted for one in state.rounds)
        facts.append(f"wasted {wasted}" + (f" ({aborted} aborted)" if aborted else ""))
    if state.prefilled is not None and not state.prefilled.lossless:
        drafted = bool(state.prefilled.kept_per_frame)
        facts.append(f"not lossless: {counts.loose} loose" if drafted else "not lossless")
    if state.tokens_per_s is not None:
        facts.append(f"{state.tokens_per_s:.1f} tokens/s")
    if state.speedup is not None:
        value, measured = state.speedup
        if value is None:
            facts.append("too short to measure")
        elif measured:
            facts.append(f"{value:.2f}x")
        else:
            facts.append(f"{value:.2f}x est." if verbose else f"estimated {value:.1f}x")
    return [fact for fact in facts if fact]


def flow_columns(parts: list[Text], width: int) -> Text:
    """Lay out ``parts`` side by side on as many lines as they need; a part that fits into ``width`` is not broken."""
    flowed, column = Text(), 0
    for part in parts:
        if column and column + 2 + part.cell_len > width:
            flowed.append("\n")
            column = 0
        elif column:
            flowed.append("  ")
            column += 2
        flowed.append_text(part)
        column += part.cell_len
    return flowed


def _fixed_lines(lines: Sequence[Text], count: int) -> list[Text]:
    """Return exactly ``count`` lines, blank ones at the end."""
    return [*lines[:count], *[Text()] * (count - len(lines))]


def _wrap_lines(text: Text, width: int) -> list[Text]:
    return list(text.wrap(Console(width=width, force_terminal=False), width))


class LivePanel(ClipStates):
    """Draws a clip on ``console`` while it is captioned and leaves its last state on the terminal.

    With several segments in flight it draws the oldest, and at the end each of them once.

    Args:
        console: on standard error; it handles NO_COLOR and the terminal width.
        path: the clip that is read first.
        profile: the name shown with the counters.
        keep_caption: the last state includes the caption; otherwise that is left to standard output (:meth:`paint`).
        verbose: see :class:`~vidspec.display.panel.PanelScreen`.
    """

    frames_per_s = 8
    #: Erase the drawing when it stops.
    transient = False

    def __init__(
        self,
        console: Console,
        *,
        path: str = "",
        profile: str = "",
        keep_caption: bool = True,
        verbose: bool = False,
    ) -> None:
        super().__init__()
        self.console = console
        self.verbose = verbose
        self.profile = profile
        self.keep_caption = keep_caption
        self.state = PanelState(path=path, profile=profile)
        self._live: Live | None = None
        self._ended: PanelState | None = None

    def begin(self, number: int, path: str, total: int) -> None:
        super().begin(number, path, total)
        self.states[number].profile = self.profile
        self.open()

    def event(self, number: int, event: Event) -> None:
        super().event(number, event)
        self.open()

    def end(self, number: int, caption: Caption) -> None:
        """Show the final figures of ``caption`` (including a measured speed-up) and release the terminal.

        The terminal may be written to until the next event.
        """
        self.open()
        self.state = self._ended = self.states.pop(number)
        self.state.apply(Finished(caption))
        self.close()

    def paint(self, line: str) -> str | None:
        """Return a line of output in the colours of its tokens' origins, wrapped for the terminal.

        None if it does not hold the caption of the clip that ended last as the tokens spell it.
        """
        pieces = [(escape_text(text), origin) for text, origin in self._ended.pieces] if self._ended else []
        whole = "".join(text for text, _ in pieces)
        at = line.find(whole.strip()) if whole.strip() else -1
        if at < 0:
            return None
        painted = Text(line)
        at -= len(whole) - len(whole.lstrip())
        for text, origin in pieces:
            painted.stylize(STYLES[origin], max(at, 0), max(at + len(text), 0))
            at += len(text)
        rows = _wrap_lines(painted, self.console.width)
        for row in rows:
            row.rstrip()
        with self.console.capture() as captured:
            self.console.print(Text("\n").join(rows))
        return captured.get().removesuffix("\n")

    def open(self) -> None:
        """Start drawing, unless already started, at the first free line."""
        self.state = next(iter(self.states.values()), self.state)
        if self._live is None:
            self._live = Live(
                console=self.console,
                get_renderable=self.drawn,
                refresh_per_second=self.frames_per_s,
                transient=self.transient,
            )
            self._live.start()

    def close(self) -> None:
        """Stop drawing and restore the terminal, below the panel's last state if that stays."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def drawn(self) -> RenderableType:
        screen = PanelScreen.of(self.console, verbose=self.verbose)
        state = replace(self.state)  # a restart must not clear the rounds while they are drawn
        low = replace(screen, height=self.console.height - 1)
        return render_clip(state, low, caption=self.keep_caption or state.caption is None)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
