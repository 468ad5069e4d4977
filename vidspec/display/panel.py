"""The live panel of a clip: ``render_clip`` builds the Rich renderable, ``LivePanel`` keeps drawing it on stderr."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from vidspec.display.heatmap import frame_map, heatmap, weight_lines
from vidspec.display.lanes import draw_lanes
from vidspec.display.state import ClipStates, PanelState
from vidspec.escaping import escape_text, one_line
from vidspec.events.events import Event, Finished, Origin
from vidspec.events.record import Caption

if TYPE_CHECKING:
    from typing import Self

__all__ = ["STYLES", "LivePanel", "PanelState", "flow_columns", "render_clip"]

#: Colour and attribute of each origin. The attributes differ too, so that the five stay distinct under NO_COLOR.
STYLES: dict[Origin, str] = {
    "draft": "green",
    "correction": "bold red",
    "bonus": "italic cyan",
    "target": "dim",
    "loose": "underline yellow",
}
LABELS: dict[Origin, str] = {
    "draft": "draft accepted",
    "correction": "corrected",
    "bonus": "bonus",
    "target": "target",
    "loose": "loosely accepted",
}
#: Fewest terminal lines for the map of kept tokens within the frame.
DETAILED = 30
#: Fewest terminal lines for the lanes of target and draft.
LANED = 14

#: Note below a caption of the built-in models, which is meaningless for other video.
DEMO = Text(" built-in models: they know drawn shapes only ", style="bold black on yellow")


def render_clip(
    state: PanelState,
    *,
    width: int = 80,
    height: int | None = None,
    caption: bool = True,
    ascii_only: bool = False,
    verbose: bool = False,
) -> RenderableType:
    """Return the panel for ``state``; pure.

    Args:
        width, height: of the terminal; a caption that does not fit into ``height`` shows its end.
        caption: show the caption and its legend.
        ascii_only: for terminals without block characters.
        verbose: use the names of docs/research/metrics.md for figures.
    """
    inner = max(1, width - 4)
    below: list[Text] = [flow_columns([Text(fact) for fact in _facts(state, verbose)], inner)]
    if state.prefilled is not None and state.prefilled.kept_per_frame:
        seen = state.prefilled
        below.append(heatmap(seen.kept_per_frame, seen.tokens_per_frame, inner, ascii_only=ascii_only))
        one_raster = 0 not in seen.grid and not seen.views
        if one_raster and len(seen.kept) < seen.visual_tokens and (height is None or height >= DETAILED):
            below.append(frame_map(seen, inner, ascii_only=ascii_only))
    if state.side_by_side and (height is None or height >= LANED):
        drawn = [line for line in draw_lanes(state.rounds, inner, ascii_only=ascii_only) if line.cell_len <= inner]
        below += [Text("\n").join(drawn)] if drawn else []
    if state.weights:
        below.append(flow_columns(weight_lines(state.weights, inner, ascii_only=ascii_only), inner))
    parts: list[RenderableType] = []
    if caption:
        below.insert(0, flow_columns(_legend(state), inner))
        taken = sum(len(_wrap_lines(text, inner)) for text in below) + 3
        parts.append(_tail(_caption_text(state), inner, None if height is None else max(1, height - taken)))
    label = Text(one_line(state.path), style="bold", no_wrap=True, overflow="ellipsis")
    label.truncate(max(1, inner - 2), overflow="ellipsis")
    whose = DEMO if any(one is not None and one.demo for one in (state.opened, state.caption)) else None
    return Panel(
        Group(*parts, *below), title=label, subtitle=whose, title_align="left", border_style="bright_black", width=width
    )


def _caption_text(state: PanelState) -> Text:
    text = Text()
    for piece, origin in state.pieces:
        text.append(escape_text(piece), style=STYLES[origin])
    if not text:
        text.append(f"{state.stage} ...", style="dim")
    return text


def _legend(state: PanelState) -> list[Text]:
    """Return labels of the origins that occur; the usual four before any token, so that the panel does not jump."""
    seen = {origin for one in state.rounds for origin in one.origins}
    shown = [origin for origin in STYLES if origin in seen] or ["draft", "correction", "bonus", "target"]
    return [Text(LABELS[origin], style=STYLES[origin]) for origin in shown]


def _facts(state: PanelState, verbose: bool) -> list[str]:
    facts = [state.profile, state.phase, f"{state.emitted} tokens"]
    if state.drafted:
        facts.append(f"accepted {state.accepted}/{state.drafted}")
    if state.tau is not None:
        facts.append(f"tau {state.tau:.2f}" if verbose else f"{state.tau:.1f} accepted per pass")
    facts.append(f"{state.target_passes} target passes")
    if state.side_by_side:
        facts.append(f"{'gamma' if verbose else 'window'} {state.rounds[-1].gamma}")
        facts.append(f"wasted {state.wasted}" + (f" ({state.aborted} aborted)" if state.aborted else ""))
    if state.prefilled is not None and not state.prefilled.lossless:
        drafted = bool(state.prefilled.kept_per_frame)
        facts.append(f"not lossless: {state.loose} loose" if drafted else "not lossless")
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


def _wrap_lines(text: Text, width: int) -> list[Text]:
    return list(text.wrap(Console(width=width, force_terminal=False), width))


def _tail(text: Text, width: int, lines: int | None) -> Text:
    wrapped = _wrap_lines(text, width)
    if lines is None or len(wrapped) <= lines:
        return text
    return Text("\n").join(wrapped[-lines:])


class LivePanel(ClipStates):
    """Draws a clip on ``console`` while it is captioned and leaves its last state on the terminal.

    With several segments in flight it draws the oldest, and at the end each of them once.

    Args:
        console: on standard error; it handles NO_COLOR and the terminal width.
        path: the clip that is read first.
        profile: the name shown with the counters.
        keep_caption: the last state includes the caption; otherwise that is left to standard output.
        verbose: see :func:`render_clip`.
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
        self.state = self.states.pop(number)
        self.state.apply(Finished(caption))
        self.close()

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

    @property
    def ascii_only(self) -> bool:
        """True if the terminal cannot show block characters."""
        return not self.console.encoding.lower().startswith("utf")

    def drawn(self) -> RenderableType:
        """Return the current drawing."""
        size = self.console.size
        state = replace(self.state)  # a restart must not clear the rounds while they are drawn
        return render_clip(
            state,
            width=size.width,
            height=None if state.caption else size.height,
            caption=self.keep_caption or state.caption is None,
            ascii_only=self.ascii_only,
            verbose=self.verbose,
        )

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
