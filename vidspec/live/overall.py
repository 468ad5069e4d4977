"""The panel of a run over many clips: the current one above a bar for all; drawn on stderr, gone when it ends."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.text import Text

from vidspec.batch.bulk import Tally, duration
from vidspec.batch.work import Outcome
from vidspec.decoding.events import Finished
from vidspec.live.panel import FRAMES_PER_S, LivePanel, render
from vidspec.live.state import PanelState
from vidspec.record import Caption

__all__ = ["BulkPanel", "bar"]

#: Lines of the current clip's panel.
MINI = 10


def bar(tally: Tally, width: int) -> RenderableType:
    """A bar of ``width`` columns and the figures below it; pure."""
    facts = [f"{tally.done}/{tally.total} clips", f"{tally.failed} failed"]
    if tally.earlier or tally.earlier_failed:
        facts.append(f"{tally.earlier + tally.earlier_failed} done before")
    facts += [f"{tally.clips_per_s:.2f} clips/s", f"{tally.tokens_per_s:.1f} tokens/s"]
    facts.append(f"{duration(tally.eta)} left" if tally.eta is not None else "")
    text = Text("  ".join(fact for fact in facts if fact), no_wrap=True, overflow="ellipsis")
    if tally.failed:
        text.highlight_words([f"{tally.failed} failed"], "bold red")
    # A bar ends no line of its own; padding makes it one.
    return Group(Padding(ProgressBar(total=max(1, tally.total), completed=tally.done, width=width)), text)


class BulkPanel(LivePanel):
    """Draws a whole run: an observer of the current clip and a listener to its outcomes.

    Args:
        console: on standard error.
        tally: counts the run; read, never changed.
        profile: the name shown with the counters.
    """

    def __init__(self, console: Console, tally: Tally, *, profile: str = "") -> None:
        super().__init__(console, profile=profile)
        self.tally = tally

    def begin(self, path: str, number: int, total: int) -> None:
        self.state = PanelState(path=path, profile=self.profile, number=number, total=total)

    def end(self, caption: Caption) -> None:
        self.state.apply(Finished(caption))

    def outcome(self, outcome: Outcome, tally: Tally) -> None:
        """The bar reads the tally itself."""

    def ended(self, tally: Tally) -> None:
        """The bar goes, so that what is said next stands alone."""
        self.close()

    def __enter__(self) -> BulkPanel:
        self._live = Live(
            console=self.console, get_renderable=self._drawn, refresh_per_second=FRAMES_PER_S, transient=True
        )
        self._live.start()
        return self

    def _drawn(self) -> RenderableType:
        size = self.console.size
        parts: list[RenderableType] = [bar(self.tally, size.width)]
        if self.state.path:
            height = min(MINI, size.height - 3)
            ascii_only = not self.console.encoding.lower().startswith("utf")
            parts.insert(0, render(self.state, width=size.width, height=height, ascii_only=ascii_only))
        return Group(*parts)
