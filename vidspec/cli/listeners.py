"""Observers of a run: result lines and progress on standard error, streamed text, and the trace."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from vidspec.cli.printed import print_event, print_note
from vidspec.cli.report import print_failure, print_traceback, progress, summary, timing_summary
from vidspec.config.run_spec import RunSpec
from vidspec.display.state import ClipStates, PanelState
from vidspec.escaping import escape_text
from vidspec.events.events import Event, Opened, Restarted, Round
from vidspec.events.observer import ClipPart, RunObserver
from vidspec.events.record import Caption
from vidspec.events.tally import Tally
from vidspec.models.detokenizer import cut_at_stop
from vidspec.runs.formats.base import MARK
from vidspec.runs.rendering import rendered_beginning, whole_words
from vidspec.runs.writers import StdoutLines

#: Seconds between progress lines without a terminal.
PROGRESS_INTERVAL = 60.0


class OutcomeLines(RunObserver):
    """Prints a line for each result; only failures if ``quiet``, and timings too if ``verbose``.

    Clips that share passes with others have no time and no speed of their own on their lines.
    """

    def __init__(self, *, several: bool, quiet: bool, debug: bool, verbose: bool = False) -> None:
        self.several, self.quiet, self.debug, self.verbose = several, quiet, debug, verbose
        self._in_flight: set[int] = set()
        self._shared = False

    def begin(self, number: int, path: str, total: int) -> None:
        self._in_flight.add(number)
        self._shared |= len(self._in_flight) > 1

    def end(self, number: int, caption: Caption) -> None:
        self._in_flight.discard(number)

    def result(self, caption: Caption, error: Exception | None, part: ClipPart, tally: Tally) -> None:
        if error is not None:
            print_failure(caption, error, debug=self.debug)
        elif not self.quiet:
            kind = caption.question["kind"] if caption.question else "segment"
            name = f" {kind} {part.segment + 1}/{part.segments}" if part.segment is not None else ""
            place = f"[{tally.done}/{tally.total}]{name} " if self.several else name.strip() + " " if name else ""
            print_note(place + summary(caption, verbose=self.verbose, shared=self._shared))
            if self.verbose:
                print_note(timing_summary(caption))


class ClipEvents(RunObserver):
    """Prints an event for each result (``--progress json``); only failures if ``quiet``."""

    def __init__(self, *, quiet: bool, debug: bool) -> None:
        self.quiet, self.debug = quiet, debug

    def result(self, caption: Caption, error: Exception | None, part: ClipPart, tally: Tally) -> None:
        if error is not None:
            print_traceback(error, debug=self.debug)
        if error is not None or not self.quiet:
            known = {"tokens": len(caption.token_ids), "timings": caption.timings, "error": caption.error}
            print_event("clip", path=caption.path, **part._asdict(), **known, **tally.counts())


class RestartNotes(ClipStates):
    """Prints a line when a clip is captioned again, which explains the extra time."""

    def __init__(self) -> None:
        super().__init__()
        self._first: PanelState | None = PanelState(began=time.monotonic())

    def begin(self, number: int, path: str, total: int) -> None:
        super().begin(number, path, total)
        self._first = None

    def event(self, number: int, event: Event) -> None:
        super().event(number, event)
        if isinstance(event, Restarted):
            print_note(f"note: {self.states[number].path}: {event.why}; the clip is captioned again")

    def end(self, number: int, caption: Caption) -> None:
        self.states.pop(number, None)

    def stage(self) -> str | None:
        """Return the stage of the first clip in flight; None once it has text."""
        state = next(iter(list(self.states.values())), self._first)
        return None if state is None or state.prefilled else f"{state.path}: {state.stage}".removeprefix(": ")


class StreamedText(RunObserver):
    """Streams the caption of a single clip by whole words; its record adds the rest.

    Args:
        lines: the output of captions.
        stop: strings that end a text.
        spec: the run.
        fields: of the clip, for the template.
    """

    def __init__(
        self, lines: StdoutLines, stop: Sequence[str], spec: RunSpec, fields: Mapping[str, str] | None = None
    ) -> None:
        self._lines, self._stop, self._spec, self._fields = lines, stop, spec, fields
        self._mark = self._text = ""

    def event(self, number: int, event: Event) -> None:
        if isinstance(event, Opened):
            self._mark = MARK if event.demo and not self._spec.names_models else ""
        elif isinstance(event, Restarted):
            self._text = ""
        elif isinstance(event, Round):
            self._text += "".join(event.texts)
            if words := whole_words(cut_at_stop(self._text, self._stop, unfinished=True)):
                text = rendered_beginning(words, self._spec.template, self._fields)
                self._lines.begin(escape_text(self._mark + text))

    def end(self, number: int, caption: Caption) -> None:
        if caption.caption is None:
            self._lines.abandon()


class ProgressNotes(RunObserver):
    """Prints a line of progress every minute of a run over several clips.

    Args:
        as_json: print JSON objects.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json, self._last = as_json, time.monotonic()

    def result(self, caption: Caption, error: Exception | None, part: ClipPart, tally: Tally) -> None:
        if (now := time.monotonic()) - self._last >= PROGRESS_INTERVAL:
            self._last = now
            if self._as_json:
                print_event("progress", **tally.counts())
            else:
                print_note(progress(tally))
