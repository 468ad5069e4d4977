"""The plan of a run: from its spec to the clips, the profile, and what shows the records.

Searches folders and lists, checks every option, and writes nothing; ``vidspec.runs.running`` carries it out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vidspec.config.run_spec import RunSpec
from vidspec.errors import UsageError, VideoError, option
from vidspec.events.tally import counted
from vidspec.runs.destinations import check_files, make_folders, plan_renderers, writes_clip_file, writes_parts
from vidspec.runs.job import Job
from vidspec.runs.reporter import RunReporter
from vidspec.runs.run_settings import (
    check_clips,
    check_machine,
    complete_spec,
    output_formats,
    plan_notes,
    profile_keys,
    read_texts,
)
from vidspec.runs.run_store import RunStore
from vidspec.runs.shards import save_array, shard_of
from vidspec.runs.sources.base import is_shard
from vidspec.runs.store.earlier import with_earlier_texts
from vidspec.runs.store.journal_lines import CaptionRun
from vidspec.runs.store.records import settings_digest
from vidspec.runs.writers import Stream

if TYPE_CHECKING:
    from vidspec.config.schema import Profile
    from vidspec.runs.allowance import FetchLimits
    from vidspec.runs.inputs import InputListing
    from vidspec.runs.renderers import Renderer
    from vidspec.runs.shards import Shard

__all__ = ["RunPlan", "plan"]


@dataclass(frozen=True)
class RunPlan:
    """Clips, profile and outputs of a run, fixed before the first clip is captioned.

    Attributes:
        spec: the run as described, with the texts, variables and config that were read.
        profile: the method, with all layers merged.
        entries: the clips of this run, or of its shard.
        found: all inputs, with those that are left out.
        renderers: show the records; none if the results are only returned.
        beside: True if files stand beside the clips.
        shard: the part of the run that this is; None for the whole.
    """

    spec: RunSpec
    profile: Profile
    entries: Sequence[Job]
    found: InputListing
    renderers: Sequence[Renderer]
    beside: bool = False
    shard: Shard | None = None

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
        from vidspec.embedded.prompts import demo_notes

        return demo_notes(self.profile.models.pair, self.profile.models.target, self.prompts)

    def open_store(self, *, read_only: bool = False) -> RunStore:
        """Open, lock and repair the outputs, unless ``read_only``; a task of a job array is noted beside them.

        Raises:
            UsageError: a file cannot be written, or another run is writing it.
        """
        spec, shard = self.spec, self.shard
        if not read_only:
            if shard is not None and shard.array is not None:
                save_array(spec, shard.array, beside=self.beside)
            make_folders(spec, self.renderers, self.entries)
        return RunStore(
            [one for one in self.renderers if not (read_only and isinstance(one, Stream))],
            self.entries,
            label=shard.label if shard else "",
            overwrite=spec.overwrite,
            read_only=read_only,
            run=CaptionRun.of(spec, self.profile),
        )


def plan(spec: RunSpec, reporter: RunReporter | None = None, *, prints: bool = False) -> RunPlan:
    """Plan a run; reads lists and folders, opens shards unless each has an output of its own, and writes nothing.

    Args:
        spec: the run.
        reporter: receives notes and unreadable inputs.
        prints: True to print captions on standard output if the spec names no output.

    Raises:
        UsageError, ProfileError: an option is wrong, or there is no clip.
    """
    from vidspec.config.user_config import read_config
    from vidspec.decoding.default_profile import resolve_profile
    from vidspec.runs.allowance import fetch_limits
    from vidspec.runs.rendering import check_template

    reporter = reporter or RunReporter()
    if spec.template is not None:
        check_template(spec.template, option("template"))
    defaults = read_config()
    asked, earlier = with_earlier_texts(read_texts(spec), spec.format or defaults.format)
    if earlier is not None:
        reporter.note(earlier)
    keys = profile_keys(asked)
    resolved = resolve_profile(spec.profile or os.environ.get("VIDSPEC_PROFILE") or None, keys, defaults)
    profile = resolved.profile
    forms = output_formats(spec, defaults)  # a profile's plugins may read further kinds of shards
    for note in plan_notes(spec, keys, forms, resolved):
        reporter.note(note)
    check_machine(asked, profile)
    limits = fetch_limits(spec)
    beside = any(writes_clip_file(spec, form) for form in forms)
    shard = shard_of(spec, beside=beside)
    found = _find_clips(spec, shard, reporter, links=beside)
    parts = writes_parts(spec, forms, found.entries)
    if not parts and any(is_shard(entry.path) for entry in found.entries):
        _open_shards(asked, profile, found, limits, reporter)
    entries = found.entries
    check_clips(asked, forms, entries)
    planned = complete_spec(asked, resolved, defaults, len(entries))
    renderers = plan_renderers(planned, forms, found, profile, shard, parts=parts, prints=prints)
    check_files(spec, renderers, entries, defaults.path)
    return RunPlan(planned, profile, entries, found, renderers, beside, shard)


def _find_clips(spec: RunSpec, shard: Shard | None, reporter: RunReporter, *, links: bool) -> InputListing:
    """Return the clips of a run or its shard, each with its time range.

    Raises:
        UsageError: there is none, or an option needs others.
    """
    from vidspec.runs import inputs

    found = inputs.collect_inputs(spec, links=links)
    total = len(found.entries)
    if shard is not None:  # before missing clips are left out: all tasks must deal the same names
        found.entries = shard.select(found.entries, searched=found.searched)
    inputs.drop_missing(found, spec.paths)
    for line in found.unreadable:
        reporter.error(line)
    for entry in found.entries:
        if (entry.start, entry.end) == (None, None):
            entry.start, entry.end = spec.start, spec.end
    if not (found.entries or (shard and total)):
        empty = "none of them can be read" if found.unreadable else "the folder or list is empty"
        raise UsageError("there is no video to caption", hint=found.left_out or empty)
    if shard:
        source = f" (from the SLURM job array {shard.array}; --shard 1/1 captions all)" if shard.array else ""
        clips = f"{len(found.entries)} of {counted(total, 'clip')}"
        reporter.info(f"shard {shard.number} of {shard.count}: {clips}{source}")
    return found


def _open_shards(
    spec: RunSpec, profile: Profile, found: InputListing, limits: FetchLimits, reporter: RunReporter
) -> None:
    """Replace shards by the clips in them; unreadable shards are reported and left out."""
    from vidspec.runs.job import named_fields
    from vidspec.runs.sources.base import shard_members

    names, entries = named_fields(spec, profile), list[Job]()
    for entry in found.entries:
        try:
            entries += shard_members(entry, spec.column, limits, names) if is_shard(entry.path) else (entry,)
        except VideoError as error:
            found.unreadable.append(str(error))
            reporter.error(str(error))
    found.entries = entries
