"""Runs ``vidspec caption``: connects sources, profile, output and engine, and reports progress on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vidspec.cli import start
from vidspec.cli.destinations import (
    check_files_distinct,
    open_output,
    plan_destinations,
    writes_clip_file,
    writes_parts,
)
from vidspec.cli.options import CaptionArguments
from vidspec.cli.printed import print_event, print_note
from vidspec.cli.report import left_out, totals
from vidspec.cli.request import (
    check_arguments,
    check_fields,
    clip_range,
    input_sources,
    job_config,
    misnamed_output,
    output_formats,
    profile_overrides,
    tolerated_failures,
)
from vidspec.cli.shard import save_array, shard_of
from vidspec.errors import LostOutputError, OutputError, UsageError, VideoError
from vidspec.events.tally import Tally, counted
from vidspec.files import check_output
from vidspec.signals import ending_of

if TYPE_CHECKING:
    from vidspec.config.schema import Profile
    from vidspec.dataset.bulk import Remaining
    from vidspec.dataset.formats.base import OutputFormat
    from vidspec.dataset.inputs import InputListing
    from vidspec.dataset.job import Job, JobConfig
    from vidspec.dataset.outputs import Output
    from vidspec.dataset.records import SettingsDigest
    from vidspec.display.heatmap_files import HeatmapFiles
    from vidspec.display.pages.report import ReportFile

__all__ = ["BulkRun", "caption_all"]


@dataclass
class BulkRun:
    """Inputs, settings and outputs of a run, fixed before the first clip is captioned."""

    request: CaptionArguments
    profile: Profile
    found: InputListing
    entries: list[Job]
    how: JobConfig
    settings: SettingsDigest
    output: Output
    pictures: HeatmapFiles | None = None
    page: ReportFile | None = None

    @property
    def debug(self) -> bool:
        return self.request.debug or os.environ.get("VIDSPEC_DEBUG", "") not in ("", "0")

    @property
    def several(self) -> bool:
        return self.found.several

    @property
    def prompts(self) -> set[str]:
        """All prompts of the run, the system prompt and prompts with ``--context`` included."""
        from vidspec.dataset.job import CONTEXT

        several = [self.how.questions_of(entry) for entry in self.entries]
        prompts = {
            text
            for entry, questions in zip(self.entries, several, strict=True)
            for text in (questions.texts if questions else (entry.prompt or self.how.prompt,))
        }
        if self.how.context:
            prompts.add(CONTEXT.format(prompt=self.how.prompt, previous="..."))
        system = self.profile.generate.system
        return prompts if system is None else prompts | {system}


def caption_all(request: CaptionArguments) -> int:
    """Caption the clips of a request and return the exit code."""
    from vidspec.config.user_config import PAIRED, read_config
    from vidspec.dataset import inputs
    from vidspec.dataset.records import SettingsDigest

    check_arguments(request)
    begin, end = clip_range(request)
    defaults = read_config()
    sources = input_sources(request)
    forms = output_formats(request, defaults)
    sources = replace(sources, links=any(writes_clip_file(request, form) for form in forms))
    if not request.quiet and (note := misnamed_output(request, forms)) is not None:
        print_note(note)
    resolved = start.resolve_profile(request.profile, profile_overrides(request), defaults, verbose=request.verbose)
    profile = resolved.profile
    if resolved.sources.get("models.draft") == PAIRED and not request.quiet:
        print_note(f"note: the draft is {profile.models.draft}, listed by `vidspec models` (--draft names another)")
    if request.engine == "local":
        start.require_devices(profile)
    config = job_config(request, profile, 0)  # checks options before folders are searched
    fetch_limits = config.fetch
    shard = shard_of(request, sources)
    found = inputs.collect_inputs(sources)
    total = len(found.entries)
    if shard is not None:  # before missing clips are left out: all tasks must deal the same names
        found.entries = shard.select(found.entries, searched=found.searched)
    inputs.drop_missing(found, sources.paths)
    for line in found.unreadable:
        print_note(f"error: {line}")
    found.entries = [
        entry if (entry.start, entry.end) != (None, None) else replace(entry, start=begin, end=end)
        for entry in found.entries
    ]
    entries = found.entries
    if not (entries or (shard and total)):
        raise UsageError("there is no video to caption", hint=left_out(found) or "the list is empty")
    if shard and not request.quiet:
        source = f" (from the SLURM job array {shard.array}; --shard 1/1 captions all)" if shard.array else ""
        clips = f"{len(entries)} of {counted(total, 'clip')}"
        print_note(f"shard {shard.number} of {shard.count}: {clips}{source}")
    if any(inputs.is_shard(entry.path) for entry in entries):
        _check_shards(request)
        access = fetch_limits.access.with_typed(*(entry.path for entry in entries))
        fetch_limits = fetch_limits._replace(access=access)
        if not writes_parts(request, forms, entries):
            found.entries = entries = list(
                _open_shards(entries, found, request.column, replace(config, fetch=fetch_limits))
            )
    check_fields(request, entries)
    _check_files(request, profile, [entry.path for entry in entries])
    how = replace(job_config(request, profile, len(entries)), models_named=resolved.models_named, fetch=fetch_limits)
    _check_questions(how, forms, entries)
    destinations = plan_destinations(request, forms, found, entries, profile, shard)
    check_files_distinct(request, destinations, entries, defaults.path)
    settings = SettingsDigest(profile.model_dump(), how)
    if request.dry_run:
        from vidspec.cli.dry_run import run_dry, run_dry_shards

        if destinations[0].parts is not None:
            return run_dry_shards(request, found, entries, destinations[0], settings)
        return run_dry(request, found, entries, destinations, settings, shard.label if shard else "")
    save_array(request, sources, shard)
    run = BulkRun(request, profile, found, entries, how, settings, open_output(request, destinations, entries, shard))
    # Keep output of libraries out of the captions; only the run's output holds the real stdout.
    with redirect_stdout(sys.stderr):
        try:
            return _run(run)
        except OutputError as error:
            raise LostOutputError(error.message, hint=error.hint) from error


def _check_shards(request: CaptionArguments) -> None:
    """Refuse options that need clips in files of their own."""
    if request.checksum:
        hint = "leave it out: clips in a tar are recognised by the size and time stored there, also in a copy of it"
        raise UsageError("--checksum needs clips that are files, not shards", hint=hint)
    if request.heatmap is not None:
        raise UsageError("--heatmap needs clips that are files, not shards", hint="unpack some clips of interest")


def _open_shards(entries: Sequence[Job], found: InputListing, column: str | None, config: JobConfig) -> Iterator[Job]:
    """Yield clips, with shards replaced by their members; unreadable shards are reported and left out."""
    from vidspec.dataset.containers import shard_members
    from vidspec.dataset.inputs import is_shard

    for entry in entries:
        try:
            shard = is_shard(entry.path)
            yield from shard_members(entry, column, config.fetch, config.named_fields) if shard else (entry,)
        except VideoError as error:
            found.unreadable.append(str(error))
            print_note(f"error: {error}")


def _check_files(request: CaptionArguments, profile: Profile, clips: Sequence[str]) -> None:
    """Refuse further output files that cannot be written, or that another program wrote."""
    if request.trace is not None:
        from vidspec.dataset.trace_file import TRACE

        check_output(request.trace, clips, "--trace", TRACE)
    if request.log_file is not None:
        from vidspec.dataset.log_file import check_log

        check_log(request.log_file, clips)
    if request.heatmap is not None:
        from vidspec.display.heatmap_files import check_heatmap

        check_heatmap(request.heatmap, profile, clips)
    if request.report is not None:
        from vidspec.display.pages.page import check_page

        check_page(request.report, clips)


def _check_questions(how: JobConfig, forms: Sequence[OutputFormat], entries: Sequence[Job]) -> None:
    """Refuse options that exclude several prompts per clip, those of a manifest included."""
    if not any(how.questions_of(entry) for entry in entries):
        return
    if how.segment is not None:
        raise UsageError("--segment and several questions of a manifest exclude each other")
    if one := [form.name for form in forms if form.one_clip]:
        raise UsageError(f"--format {one[0]}: holds one caption per clip, not several answers", hint="--format jsonl")


def _run(run: BulkRun) -> int:
    from vidspec.cli.engines import start_engine
    from vidspec.dataset.bulk import plan_run, plan_shards, run_plan
    from vidspec.dataset.parts import PartOutput
    from vidspec.dataset.run import exit_code

    request = run.request
    tally = Tally(total=len(run.entries))
    code = 0
    complete = False
    with ExitStack() as stack:
        stack.callback(lambda: _close(run, tally, complete=complete))
        try:
            again = request.retry_failed
            if isinstance(run.output, PartOutput):
                tally.total = 0
                planned = plan_shards(run.entries, run.output, run.settings, tally, request.column, retry=again)
            else:
                planned = plan_run(run.entries, run.output, run.settings, checksum=request.checksum, retry=again)
                tally.earlier, tally.earlier_failed, tally.reused = planned.captioned, planned.failed, planned.reused
                tally.kept = planned.kept
            _report_earlier(run, planned, tally)
            if planned.left or planned.unkept:
                engine, observer = start_engine(stack, run, planned, tally)
                limit = 1 if request.fail_fast else request.max_failures
                code = run_plan(planned, engine, run.output, run.settings, tally, observer, max_failures=limit)
        except KeyboardInterrupt as stop:
            if run.page is not None:
                run.page.interrupted = True
            stack.close()
            ending = ending_of(stop)
            done = tally.done - tally.unkept
            print_note(f"{ending.word}: {done} of {counted(tally.total, 'clip')} done and kept")
            return ending.code
        complete = tally.stopped is None
    if run.several and not request.quiet and request.progress != "json":
        print_note(totals(tally, run.found))
    if run.found.unreadable:
        print_note(f"error: {counted(len(run.found.unreadable), 'input')} could not be found or listed, see above")
    if tally.stopped:
        print_note(f"error: stopped: {tally.stopped}")
    unseen = run.pictures.errors if run.pictures else []
    for error in unseen:
        print_note(f"error: --heatmap: {error}")
    undrawn = run.page.errors if run.page else []
    for error in undrawn:
        print_note(f"error: --report: {error}")
    if request.report is not None and run.page is None and not request.quiet:
        print_note(
            f"note: --report: no clip was left to caption; run `vidspec report` on the output, -o {request.report}"
        )
    return max(_exit_code(run, tally, code), exit_code([*unseen, *undrawn]))


def _exit_code(run: BulkRun, tally: Tally, code: int) -> int:
    """Return the exit code of a run over all its clips, from that of those it captioned."""
    unreadable, tolerate = len(run.found.unreadable), run.request.tolerate
    failed = tally.failed + tally.earlier_failed + unreadable
    if code > 1 or not (code or failed):
        return code
    if tolerate is None or tally.stopped or failed > tolerated_failures(tolerate, tally.total + unreadable):
        return 1
    if not run.request.quiet:
        print_note(f"note: {failed} failed, not more than --tolerate {tolerate} allows")
    return 0


def _close(run: BulkRun, tally: Tally, *, complete: bool) -> None:
    for line in run.output.close(run.entries, complete=complete):
        print_note(line)  # also with --quiet: files were kept, moved or repaired
    print_event("end", **tally.counts())


def _report_earlier(run: BulkRun, planned: Remaining, tally: Tally) -> None:
    done = planned.captioned + planned.failed
    if run.request.quiet:
        return
    others = run.output.others({run.settings.of(entry) for entry in run.entries})
    if others:
        made = f"{counted(others, 'earlier record')} made with other settings"
        print_note(f"{made}: kept (--overwrite starts over)")
    if not done:
        return
    failed = f", {planned.failed} of them failed (--retry-failed tries them again)" if planned.failed else ""
    print_note(f"{done} of {counted(tally.total, 'clip')} done before{failed}")
