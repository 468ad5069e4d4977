"""Engine and observers of ``vidspec caption``: models here or in other processes, panel, pages, log and trace."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from vidspec.cli import start
from vidspec.cli.printed import print_note
from vidspec.cli.report import loaded_summary
from vidspec.cli.request import logged_arguments
from vidspec.events.observer import CombinedObserver, RunObserver
from vidspec.events.tally import Tally

if TYPE_CHECKING:
    from vidspec.cli.bulk import BulkRun
    from vidspec.dataset.bulk import Executor, Remaining
    from vidspec.dataset.job import Job, JobResult

__all__ = ["start_engine"]


def start_engine(stack: ExitStack, run: BulkRun, planned: Remaining, tally: Tally) -> tuple[Executor, RunObserver]:
    """Return the engine that captions, and the observer of the run."""
    from vidspec.cli.listeners import ClipEvents, OutcomeLines, ProgressNotes, TraceCollector

    request = run.request
    observers: list[RunObserver] = []
    observer = CombinedObserver(observers)
    if request.log_file is not None:
        from vidspec.dataset.log_file import LogFile

        log = LogFile(request.log_file, print_note)
        stack.callback(log.close)
        log.start(tally, run.profile.name, logged_arguments(request))
        observers.append(log)
    engine: Executor
    is_remote = request.engine == "ray" or request.replicas is not None
    fetches = _print_beginning(run, is_remote=is_remote) if planned.left else False
    drawn = False
    if not planned.left:  # no clip can be captioned
        engine = lambda jobs: iter(())  # noqa: E731
    else:
        engine = _remote_engine(run) if is_remote else _local_engine(stack, run, planned, observers, fetches=fetches)
        shown, drawn = _observer(stack, run, tally)
        observers += [*(() if is_remote else _text_stream(run, shown)), shown]
    if request.trace is not None:
        traces = TraceCollector(request.trace)
        stack.callback(traces.write)
        observers.append(traces)
    as_json = request.progress == "json"
    if as_json:
        observers.append(ClipEvents(quiet=request.quiet, debug=run.debug))
    else:
        verbose = request.verbose
        observers.append(OutcomeLines(several=run.several, quiet=request.quiet, debug=run.debug, verbose=verbose))
    quiet = request.quiet and not as_json
    observers.append(
        ProgressNotes(request.notify_every, several=run.several and not drawn, quiet=quiet, as_json=as_json)
    )
    return engine, observer


def _print_beginning(run: BulkRun, *, is_remote: bool) -> bool:
    """Print notes before models are loaded; return True if weights are fetched first."""
    request = run.request
    fetches = False
    if not request.quiet:
        for line in start.demo_notes(run.profile, run.prompts, f"caption {shlex.quote(run.entries[0].path)}"):
            print_note(line)
        if request.baseline and run.several:
            print_note("note: --baseline times each clip alone (--batch 1)")
        fetches = start.announce(run.profile, here=not is_remote)
    if request.verbose:
        models, video = run.profile.models, run.profile.video
        print_note(f"profile {run.profile.name}, device {models.device}, decoder {video.decoder}")
    return fetches


def _local_engine(
    stack: ExitStack, run: BulkRun, planned: Remaining, observers: list[RunObserver], *, fetches: bool
) -> Executor:
    """Return an engine of a captioner in this process, which reports to ``observers``; add those that draw pages."""
    from vidspec.dataset.local import caption_locally, readers_for

    request = run.request
    readers = readers_for(run.how, None if planned.undrawn else len(planned.jobs))
    for reader in readers:  # reader processes start while models load
        stack.callback(reader.close)
        reader.start()
    began = time.monotonic()
    # Download bars replace the status line.
    with (
        start.stage_status("loading weights", on=not (request.quiet or request.no_live or fetches)),
        start.fast_loading(),
    ):
        from vidspec.captioner import Captioner

        captioner = stack.enter_context(Captioner.from_profile(run.profile))
        captioner.return_probs = request.report is not None
        captioner.estimates_speedup = not (run.several or run.how.baseline or request.quiet)
    for line in loaded_summary(captioner, time.monotonic() - began) if request.verbose else ():
        print_note(line)
    for line in () if request.quiet else captioner.notes:
        print_note(f"note: {line}")
    observers += _page_writers(stack, run)  # before the panel, which is closed when a page is written

    def engine(jobs: Iterable[Job]) -> Iterator[JobResult]:
        return caption_locally(captioner, jobs, run.how, CombinedObserver(observers), readers)

    return engine


def _page_writers(stack: ExitStack, run: BulkRun) -> Iterator[RunObserver]:
    """Yield the observers that draw heatmaps and report pages."""
    request = run.request
    if request.heatmap is not None:
        from vidspec.display.heatmap_files import HeatmapFiles

        run.pictures = HeatmapFiles(request.heatmap, run.profile)
        yield run.pictures
    if request.report is not None:
        from vidspec.display.pages.report import ReportFile

        run.page = ReportFile(request.report, run.profile)
        stack.callback(run.page.write)
        yield run.page


def _text_stream(run: BulkRun, shown: RunObserver) -> Iterator[RunObserver]:
    """Yield the observer that streams the caption of a single clip as text.

    None if a panel shows the caption on the same terminal, or if ``--verify`` may still reject it.
    """
    from vidspec.cli.listeners import RestartNotes, StreamedText
    from vidspec.dataset.writers import StdoutLines, StreamOutput

    output, parts = run.output, run.how.segment is not None or run.how.questions_of(run.entries[0]) is not None
    if run.several or parts or run.how.verify or not isinstance(output, StreamOutput) or not output.form.is_prose:
        return
    panel = not (run.request.quiet or isinstance(shown, RestartNotes))
    if isinstance(output.lines, StdoutLines) and not (panel and output.lines.terminal):
        yield StreamedText(output.lines, run.profile.generate.stop, run.how, run.entries[0].fields)


def _remote_engine(run: BulkRun) -> Executor:
    """Return an engine of several captioners, each in its own process, here or on a Ray cluster."""
    from vidspec.dataset.devices import device_groups
    from vidspec.dataset.pool import CaptionerFactory

    request = run.request
    groups = device_groups(request.replicas, run.profile, ray=request.engine == "ray", address=request.address)
    factory = CaptionerFactory(run.profile.model_dump())
    if request.engine == "ray":
        from vidspec.dataset.ray_engine import ray_outcomes

        return lambda jobs: ray_outcomes(factory, jobs, run.how, groups, address=request.address)
    from vidspec.dataset.replicas import replica_outcomes

    return lambda jobs: replica_outcomes(factory, jobs, run.how, groups)


def _observer(stack: ExitStack, run: BulkRun, tally: Tally) -> tuple[RunObserver, bool]:
    """Return the observer of clips in flight, and True if it shows the progress of the whole run."""
    from vidspec.cli.listeners import RestartNotes
    from vidspec.dataset.writers import StreamOutput

    request = run.request
    if request.quiet:
        return RunObserver(), False
    from rich.console import Console

    console = Console(stderr=True)
    if request.no_live or request.progress == "json" or not sys.stderr.isatty() or console.is_dumb_terminal:
        restarts = RestartNotes()
        stack.enter_context(start.report_stage(restarts.stage))
        return restarts, False
    # If stdout is the same terminal, the finished caption is printed there only.
    shown = isinstance(run.output, StreamOutput) and sys.__stdout__ is not None and sys.__stdout__.isatty()
    if run.several:
        from vidspec.display.overall import RunPanel

        bar = RunPanel(console, tally, profile=run.profile.name, shared=shown, verbose=request.verbose)
        return stack.enter_context(bar), not shown
    from vidspec.display.panel import LivePanel

    panel = LivePanel(
        console,
        path=run.entries[0].path,
        profile=run.profile.name,
        keep_caption=not shown,
        verbose=request.verbose,
    )
    return stack.enter_context(panel), False
