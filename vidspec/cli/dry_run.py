"""``vidspec caption --dry-run``: prints the plan, one clip per line on stdout, with counts on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vidspec.cli.printed import print_error, print_note
from vidspec.errors import VideoError
from vidspec.escaping import one_line
from vidspec.events.tally import Tally, counted, format_duration

if TYPE_CHECKING:
    from vidspec.config.run_spec import RunSpec
    from vidspec.config.schema import Profile
    from vidspec.runs.job import Job
    from vidspec.runs.planning import RunPlan
    from vidspec.runs.run_store import RunStore


@dataclass(frozen=True)
class PlannedClip:
    """Part of a clip left to caption: ``seconds`` of video in ``parts`` parts.

    ``seconds`` is None for a clip in a shard, which is not opened; ``parts`` if they follow from scenes or the length.

    ``error`` is the reason if it cannot be captioned.
    """

    seconds: float | None = 0.0
    parts: int | None = 1
    error: str | None = None


def planned_clip(job: Job, spec: RunSpec) -> PlannedClip:
    """Return the part of a clip that is left, from its index alone; scenes are not detected."""
    from vidspec.runs.segments import fixed_segments
    from vidspec.video import probe

    if job.source is not None:
        return PlannedClip(None, 1 if spec.segment is None else None, None if job.error is None else str(job.error))
    try:
        duration = probe(job.path).duration_s
        start, end = job.start or 0.0, duration if job.end is None else min(job.end, duration)
        if end <= start:
            raise VideoError(f"{job.path}: has no frame at {start:g} s or later: it lasts {duration:.3f} s")
    except VideoError as error:
        return PlannedClip(error=str(error))
    if not isinstance(length := spec.segment, float):
        return PlannedClip(end - start, 1 if spec.segment is None else None)
    segments = [one for number, one in enumerate(fixed_segments(length, start, end)) if number not in job.done]
    return PlannedClip(sum(last - first for first, last in segments), len(segments))


def print_plan(plan: RunPlan) -> int:
    """Print the plan of a run; returns 1 if some clip cannot be read, else 0."""
    from vidspec.runs.part_files import PartFiles

    return _print_shards(plan) if isinstance(plan.renderers[0], PartFiles) else _print_clips(plan)


def _print_clips(plan: RunPlan) -> int:
    from vidspec.runs.remaining import plan_clips
    from vidspec.runs.writers import StdoutLines

    spec, entries = plan.spec, plan.entries
    store = plan.open_store(read_only=True)
    tally = Tally()
    jobs = plan_clips(entries, store, spec, plan.profile, tally)
    todo = {job.number: planned_clip(job, spec) for job in jobs}
    out = StdoutLines()
    changes: dict[Path, str] = {}
    for number, entry in enumerate(entries, start=1):
        one, name = todo.get(number), plan.settings_of(entry)
        state = _state(one, entry, store, name)
        changes |= store.file_changes(entry, name, captioned=state in ("caption", "kept"))
        part = "" if (entry.start, entry.end) == (None, None) else f"{entry.start or 0:g}-{_end(entry)}"
        length = "" if one is None or one.error or one.seconds is None else f"{one.seconds:.1f}"
        out.write(f"{state}\t{length}\t{part}\t{one_line(entry.path)}")
    errors = [one.error for one in todo.values() if one.error]
    for line in errors:
        print_error(line)
    _print_models(plan.profile, ", ".join(one.place for one in plan.renderers))
    for path, change in changes.items():
        print_note(f"{path}: {change}")
    left = [one for one in todo.values() if one.error is None]
    lengths = [one.seconds for one in left if one.seconds is not None]
    length = f"{format_duration(sum(lengths))} of video" if len(lengths) == len(left) else "of unknown length"
    counts = [f"{len(left)} to caption ({length}{_segments_text(left)})"]
    rest = {
        "done before": tally.earlier,
        "failed before (--retry-failed tries them again)": tally.earlier_failed,
        f"not to be captioned, whose files are kept ({store.kept_hint})": tally.kept,
        "unreadable": len(errors),
    }
    counts += [f"{count} {what}" for what, count in rest.items() if count]
    counts += [f"left out: {others}"] if (others := plan.found.left_out) else []
    print_note(f"{counted(len(entries), 'clip')}: {', '.join(counts)}")
    return int(bool(errors or plan.found.unreadable))


def _print_shards(plan: RunPlan) -> int:
    """Print the plan of a run with a file for each shard, without opening the shards."""
    from vidspec.files import backup_of
    from vidspec.runs.stores import is_url
    from vidspec.runs.writers import StdoutLines

    spec, shards = plan.spec, plan.entries
    output = plan.open_store(read_only=True).part_files
    assert output is not None
    parts = {shard: output.finished_part(shard, plan.settings_of(shard)) for shard in shards}
    out = StdoutLines()
    for shard, part in parts.items():
        out.write(f"{'caption' if part is None else 'failed' if part.failed else 'done'}\t\t\t{one_line(shard.path)}")
    _print_models(plan.profile, f"a {output.form.suffix} file for each shard in {output.folder}")
    for path in [Path(output.name(one.path)) for one in shards if spec.overwrite and not is_url(output.folder)]:
        if path.is_file():
            print_note(f"{path}: replaced, kept as {backup_of(path)}")
    finished = [part for part in parts.values() if part is not None]
    clips, failed = sum(part.clips for part in finished), sum(part.failed for part in finished)
    lost = f", {failed} of them failed (--retry-failed tries them again)" if failed else ""
    counts = [f"{len(shards) - len(finished)} to caption"]
    counts += [f"{len(finished)} done before ({counted(clips, 'clip')}{lost})"] if finished else []
    counts += [f"left out: {others}"] if (others := plan.found.left_out) else []
    print_note(f"{counted(len(shards), 'shard')}: {', '.join(counts)}")
    return int(bool(plan.found.unreadable))


def _print_models(profile: Profile, places: str) -> None:
    models = profile.models
    named = models.pair or " + ".join(filter(None, (models.target, models.draft)))
    print_note(f"dry run: nothing is loaded or written; {named}, profile {profile.name}; {places}")


def _state(left: PlannedClip | None, entry: Job, store: RunStore, settings: str) -> str:
    """Return the planned action for a clip, or its earlier result."""
    if left is not None:
        return "unreadable" if left.error else "caption"
    parts = store.captions.parts(entry, settings)
    if any(stored.failed for stored in parts.values()):
        return "failed"
    return "kept" if not parts and store.leaves(entry) else "done"


def _end(entry: Job) -> str:
    return "end" if entry.end is None else f"{entry.end:g}"


def _segments_text(left: Sequence[PlannedClip]) -> str:
    parts = [one.parts for one in left]
    if None in parts:
        return ", in scenes"
    count = sum(filter(None, parts))
    return f", {count} segments" if count > len(left) else ""
