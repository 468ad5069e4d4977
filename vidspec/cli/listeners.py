"""Observers of a run: result lines and progress on standard error, streamed text, and the trace."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from vidspec.cli.printed import print_event, print_note
from vidspec.cli.report import print_failure, print_traceback, progress, summary, timing_summary
from vidspec.display.state import ClipStates, PanelState
from vidspec.errors import UsageError
from vidspec.escaping import escape_text
from vidspec.events.events import Event, Opened, Restarted, Round
from vidspec.events.observer import ClipPart, RunObserver
from vidspec.events.record import Caption
from vidspec.events.tally import Tally
from vidspec.models.detokenizer import cut_at_stop
from vidspec.runs.formats.base import MARK
from vidspec.runs.job import JobConfig
from vidspec.runs.log_file import clip_facts
from vidspec.runs.rendering import rendered_beginning, whole_words
from vidspec.runs.writers import StdoutLines

__all__ = ["ClipEvents", "OutcomeLines", "ProgressNotes", "RestartNotes", "StreamedText"]

#: Seconds between progress lines without a terminal.
PROGRESS_INTERVAL = 60.0


class OutcomeLines(RunObserver):
    """Prints a line for each result; only failures if ``quiet``, and timings too if ``verbose``."""

    def __init__(self, *, several: bool, quiet: bool, debug: bool, verbose: bool = False) -> None:
        self.several, self.quiet, self.debug, self.verbose = several, quiet, debug, verbose

    def result(self, caption: Caption, error: Exception | None, part: ClipPart, tally: Tally) -> None:
        if error is not None:
            print_failure(caption, error, debug=self.debug)
        elif not self.quiet:
            kind = caption.question["kind"] if caption.question else "segment"
            name = f" {kind} {part.segment + 1}/{part.segments}" if part.segment is not None else ""
            place = f"[{tally.done}/{tally.total}]{name} " if self.several else name.strip() + " " if name else ""
            print_note(place + summary(caption, verbose=self.verbose))
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
            print_event("clip", **clip_facts(caption, part), **tally.counts())


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
        config: of the run.
        fields: of the clip, for the template.
    """

    def __init__(
        self, lines: StdoutLines, stop: Sequence[str], config: JobConfig, fields: Mapping[str, str] | None = None
    ) -> None:
        self._lines, self._stop, self._config, self._fields = lines, stop, config, fields
        self._mark = self._text = ""

    def event(self, number: int, event: Event) -> None:
        if isinstance(event, Opened):
            self._mark = MARK if event.demo and not self._config.models_named else ""
        elif isinstance(event, Restarted):
            self._text = ""
        elif isinstance(event, Round):
            self._text += "".join(event.texts)
            if words := whole_words(cut_at_stop(self._text, self._stop, unfinished=True)):
                template, single_line = self._config.template, self._config.single_line
                text = rendered_beginning(words, template, self._fields, single_line=single_line)
                self._lines.begin(escape_text(self._mark + text))

    def end(self, number: int, caption: Caption) -> None:
        if caption.caption is None:
            self._lines.abandon()


class ProgressNotes(RunObserver):
    """Prints a progress line at an interval of clips or seconds.

    Args:
        every: ``100`` clips or a time such as ``5m``; None for every minute of a run of ``several`` clips.
        several: True if the run has several clips.
        quiet: print only if ``every`` is given.
        as_json: print JSON objects.

    Raises:
        UsageError: ``every`` is neither.
    """

    def __init__(self, every: str | None, *, several: bool, quiet: bool, as_json: bool = False) -> None:
        self._as_json = as_json
        self.clips: int | None = None
        self.seconds: float | None = PROGRESS_INTERVAL if several and not quiet else None
        if every is not None:
            self.clips, self.seconds = parse_interval(every)
        self._last = time.monotonic()
        self._reported = 0

    def result(self, caption: Caption, error: Exception | None, part: ClipPart, tally: Tally) -> None:
        now, done = time.monotonic(), tally.captioned + tally.failed
        by_count = self.clips is not None and done - self._reported >= self.clips
        by_time = self.seconds is not None and now - self._last >= self.seconds
        if by_count or by_time:
            self._last, self._reported = now, done
            if self._as_json:
                print_event("progress", **tally.counts())
            else:
                print_note(progress(tally))


def parse_interval(text: str) -> tuple[int | None, float | None]:
    """Parse an interval into clips or seconds; the other is None."""
    from vidspec.runs.manifests import parse_seconds

    if re.fullmatch(r"[1-9]\d*", text.strip()):
        return int(text), None
    try:
        wanted = parse_seconds(text)
    except ValueError:
        wanted = 0.0
    if wanted <= 0:
        raise UsageError(f"--notify-every {text}: must be a number of clips or a time such as 30s or 5m")
    return None, wanted
