"""The plan of a run: from its spec to the clips, the profile, and what shows the records.

Searches folders and lists, checks every option, and writes nothing; ``vidspec.runs.running`` carries it out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vidspec.config.run_spec import RunSpec
from vidspec.errors import UsageError, VideoError, option
from vidspec.events.tally import counted
from vidspec.files import check_output
from vidspec.runs.destinations import (
    check_files_distinct,
    open_store,
    plan_renderers,
    writes_clip_file,
    writes_parts,
)
from vidspec.runs.reporter import RunReporter
from vidspec.runs.run_settings import (
    check_fields,
    check_machine,
    complete_spec,
    greedy_note,
    joined_list_note,
    misnamed_output,
    output_formats,
    profile_keys,
    read_texts,
    timed_text_note,
)
from vidspec.runs.shards import save_array, shard_of
from vidspec.runs.store.records import settings_digest
from vidspec.runs.store.run_lines import CaptionRun

if TYPE_CHECKING:
    from vidspec.config.schema import Profile
    from vidspec.runs.allowance import FetchLimits
    from vidspec.runs.formats.base import OutputFormat
    from vidspec.runs.inputs import InputListing
    from vidspec.runs.job import Job
    from vidspec.runs.renderers import Renderer
    from vidspec.runs.run_store import RunStore
    from vidspec.runs.shards import Shard

__all__ = ["RunPlan", "plan", "require_devices"]


@dataclass(frozen=True)
class RunPlan:
    """Clips, profile and outputs of a run, fixed before the first clip is captioned.

    Attributes:
        spec: the run as described, with the texts, variables and config that were read.
        profile: the method, with all layers merged.
        found: all inputs, with those that are left out.
        renderers: show the records; none if the results are only returned.
        beside: True if files stand beside the clips.
        shard: the part of the run that this is; None for the whole.
    """

    spec: RunSpec
    profile: Profile
    found: InputListing
    renderers: Sequence[Renderer]
    beside: bool = False
    shard: Shard | None = None

    @property
    def entries(self) -> Sequence[Job]:
        """The clips of this run, or of its shard."""
        return self.found.entries

    @property
    def several(self) -> bool:
        return self.found.several

    def settings_of(self, job: Job) -> str:
        """Return the digest of a clip's settings (:func:`~vidspec.runs.store.records.settings_digest`)."""
        return settings_digest(job, self.spec, self.profile)

    @property
    def prompts(self) -> set[str]:
        """All prompts of the run, the system prompt and prompts with ``--context`` included."""
        from vidspec.runs.job import CONTEXT, questions_of

        several = [questions_of(entry, self.spec) for entry in self.entries]
        own = self.profile.generate.prompt
        prompts = {
            text
            for entry, questions in zip(self.entries, several, strict=True)
            for text in (questions.texts if questions else (entry.prompt or own,))
        }
        if self.spec.context:
            prompts.add(CONTEXT.format(prompt=own, previous="..."))
        system = self.profile.generate.system
        return prompts if system is None else prompts | {system}

    @property
    def demo_notes(self) -> list[str]:
        """Warnings about captions of the built-in models; none for other models."""
        from vidspec.embedded.notes import demo_notes

        return demo_notes(self.profile.models.pair, self.profile.models.target, self.prompts)

    def open_store(self, *, read_only: bool = False) -> RunStore:
        """Open, lock and repair the outputs, unless ``read_only``; a task of a job array is noted beside them.

        Raises:
            UsageError: a file cannot be written, or another run is writing it.
        """
        if not read_only:
            save_array(self.spec, self.shard, beside=self.beside)
        run = CaptionRun.of(self.spec, self.profile)
        return open_store(self.spec, self.renderers, self.entries, self.shard, run=run, read_only=read_only)


def plan(spec: RunSpec, reporter: RunReporter | None = None, *, prints: bool = False) -> RunPlan:
    """Plan a run; reads lists and folders, opens shards unless each has an output of its own, and writes nothing.

    Args:
        spec: the run.
        reporter: receives notes and unreadable inputs.
        prints: True to print captions on standard output if the spec names no output.

    Raises:
        UsageError, ProfileError: an option is wrong, or there is no clip.
    """
    from vidspec.config.user_config import PAIRED, read_config
    from vidspec.decoding.default_profile import resolve_profile
    from vidspec.runs import inputs
    from vidspec.runs.allowance import fetch_limits
    from vidspec.runs.job import named_fields
    from vidspec.runs.rendering import check_template
    from vidspec.runs.sources.base import is_shard

    reporter = reporter or RunReporter()
    if spec.template is not None:
        check_template(spec.template, option("template"))
    begin, end = spec.clip_range
    defaults = read_config()
    inputs.check_inputs(spec)
    named = spec.profile or os.environ.get("VIDSPEC_PROFILE") or None
    written, spec = spec, read_texts(spec)
    keys = profile_keys(spec)
    resolved = resolve_profile(named, keys, defaults)
    profile = resolved.profile
    forms = output_formats(spec, defaults)  # a profile's plugins may read further kinds of shards
    beside = any(writes_clip_file(spec, form) for form in forms)
    for note in filter(
        None, (misnamed_output(spec, forms), timed_text_note(spec, forms), joined_list_note(spec, forms))
    ):
        reporter.note(note)
    if resolved.sources.get("models.draft") == PAIRED:
        reporter.note(f"the draft is {profile.models.draft}, listed by `vidspec models` (--draft names another)")
    for note in filter(None, (greedy_note(keys, profile), resolved.note)):
        reporter.note(note)
    if spec.engine == "local":
        require_devices(profile)
    check_machine(spec, profile)
    limits = fetch_limits(spec)
    shard = shard_of(spec, beside=beside)
    found = inputs.collect_inputs(spec, links=beside)
    _check_rows(spec, [entry.path for entry in found.entries])
    total = len(found.entries)
    if shard is not None:  # before missing clips are left out: all tasks must deal the same names
        found.entries = shard.select(found.entries, searched=found.searched)
    inputs.drop_missing(found, spec.paths)
    for line in found.unreadable:
        reporter.error(line)
    for entry in found.entries:
        if (entry.start, entry.end) == (None, None):
            entry.start, entry.end = begin, end
    entries: Sequence[Job] = found.entries
    if not (entries or (shard and total)):
        empty = "none of them can be read" if found.unreadable else "the folder or list is empty"
        raise UsageError("there is no video to caption", hint=found.left_out or empty)
    if shard:
        source = f" (from the SLURM job array {shard.array}; --shard 1/1 captions all)" if shard.array else ""
        reporter.info(f"shard {shard.number} of {shard.count}: {len(entries)} of {counted(total, 'clip')}{source}")
    if any(is_shard(entry.path) for entry in entries):
        _check_shards(spec)
        if not writes_parts(spec, forms, entries):
            names = named_fields(spec, profile)
            found.entries = entries = list(_open_shards(entries, found, spec.column, limits, names, reporter))
    check_fields(spec, entries)
    _check_files(spec, [entry.path for entry in entries])
    spec = complete_spec(spec, resolved, defaults)
    _check_questions(spec, forms, entries)
    renderers = plan_renderers(spec, forms, found, entries, profile, shard, prints=prints)
    check_files_distinct(written, renderers, entries, defaults.path)
    return RunPlan(spec, profile, found, renderers, beside, shard)


def require_devices(profile: Profile) -> None:
    """Check that the devices a profile names are available; imports torch only if it names one besides the CPU.

    Raises:
        DeviceError: a device is not available.
    """
    models, workers = profile.models, profile.workers
    named = (models.device, models.draft_device, workers.target, workers.draft)
    if any(device not in (None, "auto", "cpu") for device in named):
        from vidspec.decoding import auto

        auto.target_placement(profile)
        auto.draft_placement(profile)


def _check_rows(spec: RunSpec, paths: Sequence[str]) -> None:
    """Refuse options about the rows of Parquet files if there are none."""
    if any(path.lower().endswith(".parquet") for path in paths):
        return
    for name in ("column", "allow_paths", "allow_urls"):
        if getattr(spec, name):
            raise UsageError(f"{option(name)} needs a Parquet file among the inputs")


def _check_shards(spec: RunSpec) -> None:
    """Refuse options that need clips in files of their own."""
    if spec.checksum:
        hint = "leave it out: clips in a tar are recognised by the size and time stored there, also in a copy of it"
        raise UsageError(f"{option('checksum')} needs clips that are files, not shards", hint=hint)


def _open_shards(
    entries: Sequence[Job],
    found: InputListing,
    column: str | None,
    limits: FetchLimits,
    names: set[str],
    reporter: RunReporter,
) -> Iterator[Job]:
    """Yield clips, with shards replaced by their members; unreadable shards are reported and left out."""
    from vidspec.runs.sources.base import is_shard, shard_members

    for entry in entries:
        try:
            shard = is_shard(entry.path)
            yield from shard_members(entry, column, limits, names) if shard else (entry,)
        except VideoError as error:
            found.unreadable.append(str(error))
            reporter.error(str(error))


def _check_files(spec: RunSpec, clips: Sequence[str]) -> None:
    """Refuse further output files that cannot be written, or that another program wrote."""
    if spec.trace is not None:
        from vidspec.runs.trace_file import TRACE

        check_output(spec.trace, clips, option("trace"), TRACE)
    if spec.report is not None:
        from vidspec.display.pages.page import check_page

        check_page(spec.report, clips)


def _check_questions(spec: RunSpec, forms: Sequence[OutputFormat], entries: Sequence[Job]) -> None:
    """Refuse options that exclude several prompts per clip, those of a manifest included."""
    from vidspec.runs.job import questions_of

    if not any(questions_of(entry, spec) for entry in entries):
        return
    if spec.segment is not None:
        raise UsageError(f"{option('segment')} and several questions of a manifest exclude each other")
    if one := [form.name for form in forms if form.one_clip]:
        raise UsageError(
            f"{option('format', one[0])}: holds one caption per clip, not several answers",
            hint=option("format", "jsonl"),
        )
