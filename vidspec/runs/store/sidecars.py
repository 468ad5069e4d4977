"""Names of files: of clips and segments, next to the clip or below another folder, of their journals and videos."""

from __future__ import annotations

import os
import string
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from vidspec.errors import UsageError, option
from vidspec.events.record import RecordDict
from vidspec.runs.formats.base import OutputFormat, flat_record, segment_of
from vidspec.runs.job import Job
from vidspec.runs.store.journal import Journal
from vidspec.runs.store.known_journals import KnownJournals
from vidspec.runs.store.records import clip_id

#: Fields of a template.
FIELDS = ("stem", "name", "key", "suffix", "profile", "format", "start", "end", "clip")


class SidecarNames:
    """Naming scheme of the clips' files in one format.

    Args:
        form: the format, which sets ``{suffix}`` and ``{format}``.
        folder: folder in which the tree of the clips is mirrored; None to write next to each clip.
        template: the name, with fields of :data:`FIELDS`: ``stem`` is the clip's name without its suffix, ``key`` its
            name up to the first dot (WebDataset groups files by it), ``start`` and ``end`` are seconds, ``clip`` is
            the clip's 16 hex digits. It may contain ``/``.
        profile: value of ``{profile}``.

    Raises:
        UsageError: the template has an unknown field, or would write outside the folder.
    """

    def __init__(self, form: OutputFormat, folder: str | None, template: str | None, profile: str) -> None:
        self.form, self.folder, self.profile = form, folder, profile
        self.template = template or form.clip_name
        try:
            fields = {name for _, name, _, _ in string.Formatter().parse(self.template) if name is not None}
        except ValueError as error:
            raise UsageError(f"{option('name', self.template)}: {error}") from None
        unknown = sorted(fields - set(FIELDS))
        if unknown:
            raise UsageError(
                f"{option('name', self.template)}: there is no field {{{unknown[0]}}}",
                hint=f"the fields are {', '.join(FIELDS)}",
            )
        if os.path.isabs(self.template) or os.pardir in self.template.split("/"):
            raise UsageError(f"{option('name', self.template)}: would write outside the folder")

    def path(self, job: Job) -> Path:
        """Return the path of a clip's file."""
        folder = Path(os.path.dirname(job.path) or ".")
        if self.folder is not None:
            folder = Path(self.folder, os.path.dirname(job.relative))
        name = os.path.basename(job.path)
        values = {
            "stem": os.path.splitext(name)[0],
            "name": name,
            "key": name.split(".", 1)[0] or name,
            "suffix": self.form.suffix,
            "profile": self.profile,
            "format": self.form.name,
            "start": f"{job.start or 0:g}",
            "end": "end" if job.end is None else f"{job.end:g}",
            "clip": clip_id(job),
        }
        return folder / self.template.format_map(values)


class SegmentNames(SidecarNames):
    """Names of the files of a segment in the folder of ``--cut``: ``NAME-001.mp4`` and ``NAME-001.txt``.

    Those of a whole clip are its first segment's.
    """

    def path(self, job: Job) -> Path:
        whole = super().path(job)
        return whole.with_name(segment_stem(whole, job.segment or 0) + whole.suffix)

    def video(self, job: Job) -> Path:
        """Return the path of a segment's video."""
        return self.path(job).with_suffix(".mp4")


def segment_stem(path: str | Path, segment: int) -> str:
    """Return the name of a segment's files without their suffixes."""
    return f"{Path(path).stem}-{segment + 1:03d}"


class SegmentVideos:
    """The videos that ``--cut`` wrote of segments, by film and bounds, as marks in journals tell.

    Args:
        journals: journals of their runs.
    """

    def __init__(self, journals: Iterable[Journal]) -> None:
        marks = [(one.shown.parent / mark.file, mark.settings or "") for one in journals for mark in one.index.marks]
        self._films = {_film(bounds) for _, bounds in marks}
        self._videos: dict[str, list[Path]] = {}
        for video, bounds in dict(marks).items():
            self._videos.setdefault(bounds, []).append(video)

    def was_cut(self, record: RecordDict) -> bool:
        """Return True if a record is about a segment of a film of which videos were written."""
        return segment_of(record) is not None and _film(segment_bounds(record)) in self._films

    def clip(self, record: RecordDict) -> RecordDict | None:
        """Return the record of a segment as that of its video; None if there is none."""
        if (number := segment_of(record)) is None:
            return None
        name, folder = f"{segment_stem(record['path'], number)}.mp4", os.path.dirname(os.path.abspath(record["path"]))
        found = [one for one in self._videos.get(segment_bounds(record), ()) if one.name == name and one.exists()]
        if not found:
            return None
        return {**record, "path": str(max(found, key=lambda one: shared_end(one.parent, folder)))}  # copies of a film


def shared_end(folder: Path, other: str | Path) -> int:
    """Return how many folders at the end of two paths have the same names."""
    pairs = zip(reversed(folder.parts), reversed(Path(other).parts), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def segment_bounds(record: RecordDict) -> str:
    """Return what a segment's video depends on: the film and the place in it."""
    about = flat_record(record)
    content = about.get("sha256") or f"{about.get('size')} {about.get('mtime_ns')}"
    return f"{content} {about.get('start'):g}-{about.get('end'):g}"


def _film(bounds: str) -> str:
    """Return the part of :func:`segment_bounds` that stands for the film."""
    return bounds.rpartition(" ")[0]


class JournalFinder:
    """Finds the journal of a clip's file: one per folder, however the clips are named.

    It is the nearest journal in the file's folder or above that marks files of that folder, else the one in the folder
    that the user named. With an output folder it is always the one in that folder.

    Args:
        names: names of the files.
        known: reads journals.
        label: label of the shard.
    """

    def __init__(self, names: SidecarNames, known: KnownJournals, label: str = "") -> None:
        self.names, self._file, self._known = names, f".vidspec{label}.jsonl", known
        self._marked: dict[Path, set[str]] = {}  # folders by journal
        self._journal_paths: dict[tuple[str, str], Path] = {}  # by the folders of the file and of the user

    def __call__(self, job: Job | None) -> Path:
        if self.names.folder is not None or job is None:
            return Path(self.names.folder or ".", self._file)
        here = self.names.path(job).parent
        key = str(here), job.root
        if key not in self._journal_paths:
            real = Path(os.path.realpath(here))
            named = Path(job.root, self._file)
            above = (folder / self._file for folder in (real, *real.parents))
            nearest = next((one for one in above if str(real) in self._folders(one)), named)
            self._journal_paths[key] = named if os.path.realpath(named) == str(nearest) else nearest
        return self._journal_paths[key]

    def _folders(self, journal: Path) -> set[str]:
        if journal not in self._marked:
            usable = os.access(journal, os.R_OK | os.W_OK) and os.access(journal.parent, os.W_OK)
            known = self._known.read(journal) if usable else None
            self._marked[journal] = set() if known is None else known.index.marks.folders
        return self._marked[journal]


def check_sidecar_names(names: Sequence[SidecarNames], jobs: Iterable[Job]) -> None:
    """Check before captioning that no two clips or formats share a file, and that no clip would be overwritten.

    Raises:
        UsageError: naming both.
    """
    owners: dict[str, Job] = {}
    clips = set()
    for job in jobs:
        clips.add(os.path.normpath(job.path))
        paths = [os.path.normpath(one.path(job)) for one in names]
        if len(set(paths)) < len(paths):
            forms = ",".join(one.form.name for one in names)
            raise UsageError(
                f"{option('format', forms)}: two formats would share the file {paths[0]}",
                hint=option("name", "{stem}.{format}"),
            )
        for path in paths:
            other = owners.setdefault(path, job)
            if other is not job:
                parts = os.path.normpath(other.path) == os.path.normpath(job.path)
                part_fields = "{start}-{end}" if (other.start, other.end) != (job.start, job.end) else "{clip}"
                suggestion = f"{{stem}}-{part_fields}{{suffix}}" if parts else "{name}{suffix}"
                both = f"{other.path} and {job.path}"
                raise UsageError(
                    f"{both} would share the file {path}", hint=f"tell them apart by {option('name', suggestion)}"
                )
    lost = next((path for path in owners if path in clips), None)
    if lost is not None:
        raise UsageError(f"{lost}: is one of the clips, and would be replaced", hint=f"choose another {option('name')}")
