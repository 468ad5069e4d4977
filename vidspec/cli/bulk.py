"""Runs ``vidspec caption``: puts sources, profile, output and engine together, and says on stderr what happens."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vidspec.cli import asked, start
from vidspec.cli.interrupts import ending_of
from vidspec.cli.report import left_out, loaded, note, totals
from vidspec.errors import UsageError

if TYPE_CHECKING:
    from vidspec.batch.bulk import Engine, Tally
    from vidspec.batch.inputs import Found
    from vidspec.batch.outputs import Output
    from vidspec.batch.plan import Plan
    from vidspec.batch.records import Settings
    from vidspec.batch.run import Observer
    from vidspec.batch.work import Entry, How, Outcome, Task
    from vidspec.live.heatmap_files import HeatmapFiles

__all__ = ["caption_all"]


@dataclass
class Run:
    """All that was decided before anything is captioned."""

    given: Any
    profile: Any
    found: Found
    entries: list[Entry]
    how: How
    settings: Settings
    output: Output
    pictures: HeatmapFiles | None = None

    @property
    def debug(self) -> bool:
        return self.given.debug or os.environ.get("VIDSPEC_DEBUG", "") not in ("", "0")

    @property
    def several(self) -> bool:
        return self.found.several

    @property
    def prompts(self) -> set[str]:
        """All that are asked, the system prompt and what ``--context`` makes of a prompt included."""
        from vidspec.batch.run import CONTEXT

        asked = {entry.prompt or self.how.prompt for entry in self.entries}
        if self.how.context:
            asked.add(CONTEXT.format(prompt=self.how.prompt, previous="..."))
        return asked | ({self.profile.generate.system} - {None})


def caption_all(given: Any) -> int:
    """Caption what was asked for; returns the exit code.

    Args:
        given: the options, by the names of ``vidspec.cli.caption.caption``'s parameters.
    """
    from vidspec.batch import inputs
    from vidspec.batch.records import Settings
    from vidspec.batch.shards import shard_of
    from vidspec.batch.writers import check_output
    from vidspec.profile.user_config import PAIRED, read_config, resolve

    asked.check(given)
    start, end = asked.part_of(given)
    sources = asked.sources_of(given)
    defaults = read_config()
    forms = asked.forms_of(given, defaults)
    resolved = resolve(given.profile, asked.overrides_of(given), defaults)
    profile = resolved.profile
    if resolved.sources.get("models.draft") == PAIRED and not given.quiet:
        note(f"note: the draft is {profile.models.draft}, as `vidspec pairs` has it (--draft names another)")
    asked.how_of(given, profile, 0)  # refuses what cannot be before folders are searched
    shard = shard_of(given.shard, os.environ)
    found = inputs.collect(sources)
    inputs.leave_out_missing(found, sources.paths)
    for line in found.unreadable:
        note(f"error: {line}")
    found.entries = [
        entry if (entry.start, entry.end) != (None, None) else replace(entry, start=start, end=end)
        for entry in found.entries
    ]
    if not found.entries:
        raise UsageError("there is no video to caption", hint=left_out(found) or "the list is empty")
    entries = shard.mine(found.entries) if shard else found.entries
    if shard and not given.quiet:
        source = " (SLURM's job array; --shard 1/1 captions all)" if shard.automatic else ""
        note(f"shard {shard.number} of {shard.count}: {len(entries)} of {len(found.entries)} clips{source}")
    if given.trace is not None:
        check_output(given.trace, [entry.path for entry in entries], "--trace")
    if given.heatmap is not None:
        from vidspec.live.heatmap_files import check_heatmap

        check_heatmap(given.heatmap, profile, [entry.path for entry in entries])
    how = asked.how_of(given, profile, len(entries))
    places = asked.places_of(given, forms, found, entries, profile.name, shard)
    settings = Settings(profile.model_dump(), how)
    if given.dry_run:
        from vidspec.cli.dry_run import dry_run

        return dry_run(given, found, entries, places, settings, shard.label if shard else "")
    run = Run(given, profile, found, entries, how, settings, asked.output_of(given, places, entries, shard))
    # Libraries that print must not mix with captions; only the output still holds the true stdout.
    with redirect_stdout(sys.stderr):
        return _run(run)


def _run(run: Run) -> int:
    from vidspec.batch.bulk import Tally, execute
    from vidspec.batch.plan import plan
    from vidspec.batch.run import exit_code

    given = run.given
    tally = Tally(total=len(run.entries))
    code = 0
    complete = False
    with ExitStack() as stack:
        stack.callback(lambda: _close(run, tally, complete=complete))
        try:
            planned = plan(run.entries, run.output, run.settings, checksum=given.checksum, retry=given.retry_failed)
            tally.earlier, tally.earlier_failed, tally.reused = planned.captioned, planned.failed, planned.reused
            _tell_earlier(run, planned)
            if planned.tasks or planned.unkept:
                engine, listeners = _equipped(stack, run, planned, tally)
                limit = 1 if given.fail_fast else given.max_failures
                code = execute(planned, engine, run.output, run.settings, tally, listeners, max_failures=limit)
        except KeyboardInterrupt as stop:
            stack.close()
            ending = ending_of(stop)
            note(f"{ending.word}: {tally.done} of {tally.total} clips were done, and are kept")
            return ending.code
        complete = tally.stopped is None
    if run.several and not given.quiet:
        note(totals(tally, run.found))
    if run.found.unreadable:
        note(f"error: {len(run.found.unreadable)} of what was named could not be found or listed, see above")
    if tally.stopped:
        note(f"error: stopped: {tally.stopped}")
    unseen = run.pictures.errors if run.pictures else []
    for error in unseen:
        note(f"error: --heatmap: {error}")
    return max(code, exit_code(unseen)) or int(bool(tally.earlier_failed or run.found.unreadable))


def _close(run: Run, tally: Tally, *, complete: bool) -> None:
    for line in run.output.close(run.entries, complete=complete):
        if not run.given.quiet:
            note(line)


def _tell_earlier(run: Run, planned: Plan) -> None:
    done = planned.captioned + planned.failed
    if run.given.quiet:
        return
    others = run.output.others({run.settings.of(entry) for entry in run.entries})
    if others:
        note(f"{others} earlier records were made with other settings and stay (--overwrite begins anew)")
    if not done:
        return
    failed = f", {planned.failed} of them failed (--retry-failed tries them again)" if planned.failed else ""
    note(f"{done} of {len(run.entries)} clips were done before{failed}")


def _equipped(stack: ExitStack, run: Run, planned: Plan, tally: Tally) -> tuple[Engine, list[Any]]:
    """The engine that was asked for, and who listens to it."""
    from vidspec.batch.bulk import Listener
    from vidspec.cli.listeners import Lines, Notifier, Traces

    given = run.given
    listeners: list[Listener] = []
    if given.log_file is not None:
        from vidspec.batch.log_file import LogFile

        log = LogFile(given.log_file, note)
        stack.callback(log.close)
        log.start(tally, run.profile.name, asked.parameters(given))
        listeners.append(log)
    elsewhere = given.engine.value == "ray" or given.replicas is not None
    if planned.tasks:
        for line in start.demo_notes(run.profile, run.prompts):
            note(line)
        if given.baseline and run.several and not given.quiet:
            note("note: --baseline times each clip alone: --batch 1")
        if not given.quiet:
            start.announce(run.profile, here=not elsewhere)
        if given.verbose:
            models, video = run.profile.models, run.profile.video
            note(f"profile {run.profile.name}, device {models.device}, decoder {video.decoder}")
    engine: Engine
    observer: Observer
    panel: Any = None
    if not planned.tasks:  # no caption could be kept
        engine = lambda tasks: iter(())  # noqa: E731
    elif elsewhere:
        engine = _elsewhere(run)
        observer, panel = _observer(stack, run, tally)
    else:
        from vidspec.batch.local import outcomes, readers_for

        readers = readers_for(run.how, len(planned.tasks))
        for reader in readers:  # their processes start while models load
            stack.callback(reader.close)
            reader.start()

        began = time.monotonic()
        with start.uncollected():
            from vidspec.captioner import Captioner

            captioner = stack.enter_context(Captioner.from_profile(run.profile))
        for line in loaded(captioner, time.monotonic() - began) if given.verbose else ():
            note(line)
        for line in captioner.notes:
            note(f"note: {line}")
        observer, panel = _observer(stack, run, tally)
        if given.heatmap is not None:
            from vidspec.live.heatmap_files import HeatmapFiles

            observer = run.pictures = HeatmapFiles(given.heatmap, run.profile, observer)

        def engine(tasks: Iterable[Task]) -> Iterator[Outcome]:
            return outcomes(captioner, tasks, run.how, observer, readers)

    if given.trace is not None:
        traces = Traces(given.trace)
        stack.callback(traces.write)
        listeners.append(traces)
    listeners.append(Lines(several=run.several, quiet=given.quiet, debug=run.debug, verbose=given.verbose))
    if panel is not None:
        listeners.append(panel)
    listeners.append(Notifier(given.notify_every, several=run.several and panel is None, quiet=given.quiet))
    return engine, listeners


def _elsewhere(run: Run) -> Engine:
    """An engine of several captioners in processes of their own, here or on a Ray cluster."""
    from vidspec.batch.pool import Factory, device_groups

    given = run.given
    groups = device_groups(given.replicas, run.profile, ray=given.engine.value == "ray", address=given.address)
    factory = Factory(run.profile.model_dump())
    if given.engine.value == "ray":
        from vidspec.batch.ray_engine import ray_outcomes

        return lambda tasks: ray_outcomes(factory, tasks, run.how, groups, address=given.address)
    from vidspec.batch.replicas import replica_outcomes

    return lambda tasks: replica_outcomes(factory, tasks, run.how, groups)


def _observer(stack: ExitStack, run: Run, tally: Tally) -> tuple[Observer, Any]:
    """Who watches the clips in flight, and the panel of the whole run if there is one."""
    from vidspec.batch.outputs import Stream
    from vidspec.batch.run import Observer
    from vidspec.cli.listeners import Restarts

    given = run.given
    if given.quiet:
        return Observer(), None
    if given.no_live or not sys.stderr.isatty():
        return Restarts(), None
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_dumb_terminal:
        return Restarts(), None
    # Where the terminal shows stdout too, the finished caption stands there and not twice.
    shown = isinstance(run.output, Stream) and sys.__stdout__ is not None and sys.__stdout__.isatty()
    if run.several:
        from vidspec.live.overall import BulkPanel

        panel = stack.enter_context(BulkPanel(console, tally, profile=run.profile.name, shared=shown))
        return panel, None if shown else panel
    from vidspec.live.panel import LivePanel

    return stack.enter_context(LivePanel(console, profile=run.profile.name, keep_caption=not shown)), None
