"""The panel of a run over many clips: a progress bar, one line per clip in flight, and the oldest clip in full."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.text import Text

from vidspec.display.clip_lines import clip_lines, headings
from vidspec.display.panel import LivePanel, PanelScreen, flow_columns, render_clip
from vidspec.display.state import PanelState
from vidspec.events.events import LoopLoad
from vidspec.events.record import Caption
from vidspec.events.tally import Tally, counted, format_duration

#: Fewest lines of a clip's panel.
MINI = 10
#: Fewest terminal lines for headings and all figures; a shorter terminal shows the first two lines of figures.
ROOMY = 16
#: Share of time the models spent waiting for files, from which it is shown.
READING = 0.1
#: Loads over which rows per pass are averaged: in a single one, a prompt's rows would hide those of the windows.
RECENT = 16


def render_run(
    tally: Tally,
    states: Sequence[PanelState],
    loads: Sequence[LoopLoad] = (),
    *,
    screen: PanelScreen,
    now: float,
    max_in_flight: int = 0,
) -> RenderableType:
    """Return the panel of a run, a line lower than ``screen``; pure apart from the clock of ``tally``.

    The first clip has a panel if there is room for it and for a line per clip. A single clip then has no line.

    Args:
        tally: counts of the run.
        states: the clips in flight, oldest first.
        loads: the latest loads, newest last.
        screen: the terminal; verbose, also the fill of passes and caches.
        now: by ``time.monotonic``.
        max_in_flight: the most clips in flight so far. That many lines stay reserved, so that the panel does not appear
            and disappear with each clip.
    """
    width, height, ascii_only = screen.width, screen.height or ROOMY, screen.ascii_only
    roomy = height >= ROOMY
    facts = _facts(tally, loads, screen)[: None if roomy else 2]
    parts: list[RenderableType] = [progress_bar(tally, width), *facts]
    left = height - 1 - len(parts)
    alone = max(max_in_flight, len(states)) == 1
    table = 0 if alone else max(max_in_flight, len(states)) + roomy
    if not states:
        return Group(*parts)
    boxed = roomy and left - table >= MINI
    room = table if boxed else min(left, table)
    lines = [] if alone and boxed else _table(states, now, width, table if boxed else left, roomy, ascii_only)
    lines += [Text()] * (room - len(lines))  # the panel below, or the shell's prompt, stays where it is
    if not boxed:
        return Group(*parts, *lines)
    return Group(*parts, *lines, render_clip(states[0], replace(screen, height=left - table)))


def progress_bar(tally: Tally, width: int) -> RenderableType:
    # A bar does not end its line; padding does.
    return Padding(ProgressBar(total=max(1, tally.total), completed=tally.done, width=width))


def _table(
    states: Sequence[PanelState], now: float, width: int, lines: int, headed: bool, ascii_only: bool
) -> list[Text]:
    above = [headings(width)] if headed else []
    return above + clip_lines(states, now=now, width=width, lines=lines - headed, ascii_only=ascii_only)


def _facts(tally: Tally, loads: Sequence[LoopLoad], screen: PanelScreen) -> list[Text]:
    """Return the figures of a run, the most important first, on as many lines as they need."""
    load = loads[-1] if loads else None
    facts = [f"{tally.done}/{counted(tally.total, 'clip')}", f"{tally.failed} failed"]
    facts.append(f"{format_duration(tally.eta)} left" if tally.eta is not None else "")
    facts += [f"{tally.clips_per_s:.2f} clips/s", f"{tally.tokens_per_s:.1f} tokens/s"]
    if load is not None:
        facts.append(f"{load.clips} of {load.batch} in flight")
        facts.append(f"{load.waiting} waiting" if load.waiting else "")
        facts.append(f"reading {load.reading:.0%}" if load.reading >= READING else "")
        if load.accepted and load.passes:
            facts.append(f"{load.accepted / load.passes:.1f} accepted tokens per pass of all clips")
        if screen.verbose and load.passes:
            facts.append(f"{sum(one.rows for one in loads) / len(loads):.1f} rows/pass")
        facts.append(_memory(load.kv_used, load.kv_capacity) if screen.verbose else "")
    if tally.earlier or tally.earlier_failed:
        facts.append(f"{tally.earlier + tally.earlier_failed} done before")
    lines = flow_columns([Text(fact) for fact in facts if fact], screen.width).split("\n")
    for line in lines:
        line.truncate(screen.width, overflow="crop" if screen.ascii_only else "ellipsis")
        if tally.failed:
            line.highlight_words([f"{tally.failed} failed"], "bold red")
    return list(lines)


def _memory(used: int, capacity: int) -> str:
    """Format the use of a cache in the unit of its capacity."""
    unit, name = (2**30, "GiB") if capacity >= 2**30 else (2**20, "MiB")
    return f"KV {used / unit:.1f} of {capacity / unit:.1f} {name}" if capacity else ""


class RunPanel(LivePanel):
    """Draws a whole run: the tally, and the clips in flight. Disappears when the run ends.

    Args:
        console: on standard error.
        profile: the name shown with the counters.
        verbose: see :func:`render_run`.
        shared: captions go to the same terminal. The panel then closes at a clip's end until the next event, so that
            the caption can be written.
    """

    frames_per_s = 4  # drawing takes time from the captioning thread
    transient = True

    def __init__(
        self, console: Console, tally: Tally, *, profile: str = "", shared: bool = False, verbose: bool = False
    ) -> None:
        super().__init__(console, profile=profile, verbose=verbose)
        self.tally, self.shared = tally, shared
        self.loads: deque[LoopLoad] = deque(maxlen=RECENT)
        self.max_in_flight = 0

    def begin(self, number: int, path: str, total: int) -> None:
        super().begin(number, path, total)
        self.max_in_flight = max(self.max_in_flight, len(self.states))

    def load(self, load: LoopLoad) -> None:
        self.loads.append(load)

    def end(self, number: int, caption: Caption) -> None:
        del self.states[number]
        if self.shared:
            self.close()

    def drawn(self) -> RenderableType:
        states = [replace(state) for state in list(self.states.values())]
        screen, now = PanelScreen.of(self.console, verbose=self.verbose), time.monotonic()
        return render_run(
            self.tally, states, list(self.loads), screen=screen, now=now, max_in_flight=self.max_in_flight
        )
