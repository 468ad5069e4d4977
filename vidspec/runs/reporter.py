"""The seam between a run and its user: notes, stages and observers. Without a terminal they go to the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from vidspec.events.observer import RunObserver
from vidspec.events.tally import Tally

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.runs.planning import RunPlan
    from vidspec.runs.running import Run

__all__ = ["RunReporter"]

_LOG = logging.getLogger("vidspec")


class RunReporter:
    """Receives what a run says beside its results; this base class logs it as ``vidspec``.

    Attributes:
        estimates_speedup: True to estimate the speed-up of a lone clip, which takes some plain steps after its text.
    """

    estimates_speedup = False

    def info(self, line: str) -> None:
        """Report the state of the run."""
        _LOG.info(line)

    def note(self, line: str) -> None:
        """Report something that the user may want to change."""
        _LOG.warning(line)

    def kept(self, line: str) -> None:
        """Report files that were kept, moved or repaired instead of written as usual."""
        _LOG.warning(line)

    def error(self, line: str) -> None:
        """Report an input or an output that failed."""
        _LOG.error(line)

    def begin(self, plan: RunPlan) -> bool:
        """Called before models are loaded; returns True if weights are fetched first."""
        for line in plan.demo_notes:
            self.note(line)
        return False

    @contextmanager
    def loading(self, *, fetches: bool) -> Iterator[None]:
        """Context in which models are loaded."""
        yield

    def loaded(self, captioner: Captioner, seconds: float) -> None:
        """Called with the loaded models."""
        from vidspec.decoding.captioner_models import notes_on

        for line in notes_on(captioner.client.setup):
            _LOG.info(line)

    def clip_observers(self, stack: ExitStack, run: Run, tally: Tally) -> Sequence[RunObserver]:
        """Return observers of clips in flight, such as a panel; ``stack`` closes them at the end of the run."""
        return ()

    def result_observers(self, plan: RunPlan) -> Sequence[RunObserver]:
        """Return observers of results, the last to be called."""
        return ()

    def closed(self, tally: Tally) -> None:
        """Called after the outputs were closed."""
