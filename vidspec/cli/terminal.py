"""A run on a terminal: notes, result lines and the live panel on standard error, streamed text on standard output."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from vidspec.cli import start
from vidspec.cli.options import TerminalOptions
from vidspec.cli.printed import print_event, print_note
from vidspec.cli.report import (
    loaded_summary,
    print_failure,
    print_traceback,
    progress,
    summary,
    timing_summary,
    totals,
)
from vidspec.config.run_spec import RunSpec
from vidspec.display.state import ClipStates, PanelState
from vidspec.errors import LostOutputError, OutputError
from vidspec.escaping import escape_text
from vidspec.events.events import Event, Opened, Restarted, Round
from vidspec.events.observer import ClipPart, RunObserver
from vidspec.events.record import Caption
from vidspec.events.tally import Tally, counted
from vidspec.models.detokenizer import cut_at_stop
from vidspec.runs.formats.base import MARK
from vidspec.runs.planning import RunPlan
from vidspec.runs.rendering import rendered_beginning, whole_words
from vidspec.runs.reporter import RunReporter
from vidspec.runs.running import Run
from vidspec.runs.writers import StdoutLines
from vidspec.signals import ending_of

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.draft_length.costs import PassCosts


#: Seconds between progress lines without a terminal.
PROGRESS_INTERVAL = 60.0


def run_on_terminal(plan: RunPlan, reporter: TerminalReporter) -> int:
    """Carry out a plan, report on standard error, and return the exit code."""
    run = Run(plan, reporter)
    try:
        with redirect_stdout(sys.stderr), run:  # libraries print; only the outputs hold the real stdout
            for _ in run:
                pass
    except KeyboardInterrupt as stop:
        ending, tally = ending_of(stop), run.tally
        done = tally.done - tally.unkept
        print_note(f"{ending.word}: {done} of {counted(tally.total, 'clip')} done and kept")
        return ending.code
    except OutputError as error:
        raise LostOutputError(error.message, hint=error.hint) from error
    _print_end(run, reporter)
    return run.exit_code


def _print_end(run: Run, reporter: TerminalReporter) -> None:
    plan, tally = run.plan, run.tally
    if plan.found.several and reporter.options.progress != "json":
        reporter.info(totals(tally, plan.found))
    if plan.found.unreadable:
        reporter.error(f"{counted(len(plan.found.unreadable), 'input')} could not be found or listed, see above")
    if tally.stopped:
        reporter.error(f"stopped: {tally.stopped}")
    for option, error in run.file_errors:
        reporter.error(f"{option}: {error}")
    report = plan.spec.report
    if report is not None and not run.ran_here:
        reporter.note(f"--report: no clip was left to caption; run `vidspec report` on the output, -o {report}")


class TerminalReporter(RunReporter):
    """Prints on standard error, by the options of the command."""

    def __init__(self, options: TerminalOptions) -> None:
        self.options = options
        self.estimates_speedup = not options.quiet
        self._draws_run = False
        self._costs: PassCosts | None = None

    def info(self, line: str) -> None:
        if not self.options.quiet:
            print_note(line)

    def note(self, line: str) -> None:
        self.info(f"note: {line}")

    def kept(self, line: str) -> None:
        print_note(line)  # also with --quiet: files were kept, moved or repaired

    def error(self, line: str) -> None:
        print_note(f"error: {line}")

    def begin(self, plan: RunPlan) -> bool:
        options, fetches = self.options, False
        if not options.quiet:
            if plan.spec.baseline and len(plan.entries) > 1:
                self.note("--baseline times each clip alone (--batch 1)")
            command = f"caption {shlex.quote(plan.entries[0].path)}"
            fetches = start.announce(plan.profile, command, plan.prompts, here=not plan.spec.is_remote)
        if options.verbose:
            models, video = plan.profile.models, plan.profile.video
            print_note(f"profile {plan.profile.name}, device {models.device}, decoder {video.decoder}")
        return fetches

    @contextmanager
    def loading(self, *, fetches: bool) -> Iterator[None]:
        # Download bars replace the status line.
        on = not (self.options.quiet or self.options.no_live or fetches)
        with start.stage_status("loading weights", on=on), start.fast_loading():
            yield

    def loaded(self, captioner: Captioner, seconds: float) -> None:
        from vidspec.decoding.captioner_models import notes_on

        self._costs = captioner.client.setup.costs
        for line in loaded_summary(captioner, seconds) if self.options.verbose else ():
            print_note(line)
        for line in notes_on(captioner.client.setup):
            self.note(line)

    def clip_observers(self, stack: ExitStack, run: Run, tally: Tally) -> Sequence[RunObserver]:
        shown = self._panel(stack, run, tally)
        streamed = () if run.plan.spec.is_remote else _text_stream(run, shown, quiet=self.options.quiet)
        return (*streamed, shown)

    def result_observers(self, plan: RunPlan) -> Sequence[RunObserver]:
        options, several = self.options, plan.found.several
        as_json = options.progress == "json"
        quiet, debug = options.quiet, options.debug or os.environ.get("VIDSPEC_DEBUG", "") not in ("", "0")
        lines: RunObserver = OutcomeLines(several=several, quiet=quiet, debug=debug, verbose=options.verbose)
        if as_json:
            lines = ClipEvents(quiet=quiet, debug=debug)
        shown = several and (as_json or not quiet) and not self._draws_run
        return (lines, ProgressNotes(as_json=as_json)) if shown else (lines,)

    def closed(self, tally: Tally) -> None:
        for line in self._costs.lines() if self._costs is not None and self.options.verbose else ():
            print_note(line)
        print_event("end", **tally.counts())

    def _panel(self, stack: ExitStack, run: Run, tally: Tally) -> RunObserver:
        """Return the observer that shows clips in flight: a panel, or lines without a terminal."""
        options, plan = self.options, run.plan
        if options.quiet:
            return RunObserver()
        from rich.console import Console

        console = Console(stderr=True)
        if options.no_live or options.progress == "json" or not sys.stderr.isatty() or console.is_dumb_terminal:
            restarts = RestartNotes()
            stack.enter_context(start.report_stage(restarts.stage))
            return restarts
        # If stdout is the same terminal, the finished caption is printed there only, in the panel's colours.
        stream = run.store.only_stream
        shared = stream is not None and sys.__stdout__ is not None and sys.__stdout__.isatty()
        if plan.found.several:
            from vidspec.display.overall import RunPanel

            self._draws_run = not shared
            bar = RunPanel(console, tally, profile=plan.profile.name, shared=shared, verbose=options.verbose)
            return stack.enter_context(bar)
        from vidspec.display.panel import LivePanel

        panel = LivePanel(
            console,
            path=plan.entries[0].path,
            profile=plan.profile.name,
            keep_caption=not shared,
            verbose=options.verbose,
        )
        if shared and stream is not None and isinstance(stream.lines, StdoutLines):
            stream.lines.paint = panel.paint
        return stack.enter_context(panel)


def _text_stream(run: Run, shown: RunObserver, *, quiet: bool) -> Iterator[RunObserver]:
    """Yield the observer that streams the caption of a single clip as text.

    None if a panel shows the caption on the same terminal, or if ``--verify``, ``--rewrite`` or ``--limit`` may still
    change it.
    """
    from vidspec.runs.job import questions_of

    plan, stream = run.plan, run.store.only_stream
    parts = plan.spec.segment is not None or questions_of(plan.entries[0], plan.spec) is not None
    pending = plan.spec.verify or plan.spec.rewrite is not None or plan.spec.limit is not None
    if plan.found.several or parts or pending or stream is None or not stream.form.is_prose:
        return
    panel = not (quiet or isinstance(shown, RestartNotes))
    if isinstance(stream.lines, StdoutLines) and not (panel and stream.lines.terminal):
        yield StreamedText(stream.lines, plan.profile.generate.stop, plan.spec, plan.entries[0].fields)


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
