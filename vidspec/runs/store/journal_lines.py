"""Lines of a journal, and which of them count: records, marks of files, and descriptions of the runs.

A later record of a clip under the same settings replaces an earlier one, and segments those of another division; but a
failure replaces no caption of the same content. A mark has the name of a file and the hash of its bytes as a run wrote
it. The spec and the profile of a run stand once, before its first record: ``{"run": SETTINGS, "spec": {...}, "profile":
{...}}``. Its other settings, as of clips with prompts of their own, have a line ``{"run": SETTINGS, "of": SETTINGS}``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from vidspec.escaping import json_text
from vidspec.events.record import RecordDict
from vidspec.files import encode_line, open_own
from vidspec.runs.formats.base import holds_caption
from vidspec.runs.store.records import FileContent

if TYPE_CHECKING:
    from vidspec.config.run_spec import RunSpec
    from vidspec.config.schema import Profile
    from vidspec.runs.store.journal import Journal

#: Beginnings of a mark's line and of a run's; no record begins like these.
_MARK, _RUN = b'{"file": ', b'{"run": '
#: Types of the keys that place a record among others.
_TYPES = {
    **dict.fromkeys(("path", "clip", "settings"), str),
    **dict.fromkeys(("start", "end"), int | float | None),
    **dict.fromkeys(("size", "mtime_ns", "segment", "segments"), int | None),
    **dict.fromkeys(("sha256", "existing"), str | None),
}
#: Fields of a spec that name clips: a record has its own, and there may be a million.
_INPUTS = {"paths", "from_file", "manifest"}


class FileMark(NamedTuple):
    """State of a file as a run wrote it: the ``sha256`` of its first ``size`` bytes.

    ``offset`` and ``length`` locate the line in the journal, ``file`` is relative to the journal's folder, ``settings``
    and ``format`` are those of the records in the file. ``clip`` is set for a file of one clip, and ``segment`` for one
    of its segments; versions before 0.5.0 set neither.
    """

    offset: int
    length: int
    file: str
    size: int
    sha256: str
    settings: str | None = None
    format: str | None = None
    clip: str | None = None
    segment: int | None = None


class MarkedCaption(TypedDict, total=False):
    """The optional fields of a :class:`FileMark`."""

    settings: str | None
    format: str | None
    clip: str | None
    segment: int | None


class FileMarks:
    """Marks in a journal, of each file the last two: a run may have been killed between mark and write.

    Args:
        journal: path of the journal, without links.
    """

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self._marks: dict[str, list[FileMark]] = {}
        self._folders: set[str] = set()
        self._clips: dict[tuple[str | None, int | None], dict[str, None]] = {}  # files by clip and segment

    def __iter__(self) -> Iterator[FileMark]:
        return chain.from_iterable(self._marks.values())

    def add(self, mark: FileMark) -> None:
        """Add a mark, the last of its file."""
        self._marks[mark.file] = [*self._marks.get(mark.file, ())[-1:], mark]
        self._folders.add(os.path.dirname(mark.file))
        self._clips.setdefault((mark.clip, mark.segment), {})[mark.file] = None

    def of(self, path: Path) -> Sequence[FileMark]:
        """Return the marks of a file."""
        return self._marks.get(self.name(path), ())

    def latest(self, path: Path) -> FileMark | None:
        """Return the last mark of a file."""
        return next(reversed(self.of(path)), None)

    def caption_files(self, clip: str | None, segment: int | None = None) -> dict[Path, str]:
        """Return the caption files of a clip or its segment, with their formats; None for those without a clip."""
        latest = (self._marks[file][-1] for file in self._clips.get((clip, segment), ()))
        return {self.path(mark): mark.format for mark in latest if mark.format and holds_caption(mark.format)}

    def name(self, path: Path) -> str:
        """Return the name of a file in marks: relative to the journal's folder."""
        return os.path.relpath(os.path.join(os.path.realpath(path.parent), path.name), self.journal.parent)

    def path(self, mark: FileMark) -> Path:
        """Return the path of a marked file."""
        return self.journal.parent / mark.file

    @property
    def folders(self) -> set[str]:
        """Folders of the marked files."""
        return {os.path.realpath(self.journal.parent / folder) for folder in self._folders}


def is_mark(line: bytes) -> bool:
    """Return True if a line of a journal is a file mark, not a record."""
    return line.startswith(_MARK)


def parsed_mark(line: bytes) -> FileMark | None:
    """Parse the mark in a line, without its place in the journal; None if the line is no mark."""
    if not is_mark(line):
        return None
    try:
        fields = json.loads(line)
        return FileMark(
            0, 0, str(fields["file"]), int(fields["size"]), *(fields.get(key) for key in FileMark._fields[4:])
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def mark_line(mark: FileMark) -> bytes:
    """Return a mark as a line of a journal."""
    known = {key: value for key, value in mark._asdict().items() if key not in ("offset", "length")}
    known = {key: value for key, value in known.items() if value is not None or key not in ("clip", "segment")}
    return encode_line(json_text(known) + "\n")


@dataclass(frozen=True)
class CaptionRun:
    """A run that made captions: the given fields of its spec, without its inputs, and its profile."""

    spec: Mapping[str, object]
    profile: Mapping[str, object]

    @classmethod
    def of(cls, spec: RunSpec, profile: Profile) -> CaptionRun:
        """Return the description of a run, as JSON-ready values."""
        given = spec.model_dump(mode="json", exclude=_INPUTS, exclude_defaults=True)
        return cls(given, profile.model_dump(mode="json"))

    @cached_property
    def digest(self) -> str:
        """Hash by which equal descriptions are known."""
        return hashlib.sha256(json.dumps([self.spec, self.profile], sort_keys=True).encode()).hexdigest()[:16]


class RunLine(NamedTuple):
    """Place of the line that describes the run of some settings, in bytes."""

    offset: int
    length: int
    settings: str


class RunLines:
    """The descriptions in a file, by settings.

    Args:
        file: the journal, or the hidden file beside it.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lines: dict[str, RunLine] = {}
        self._runs: dict[str, CaptionRun] = {}
        self._origins: dict[str, str] = {}  # settings of the line with a description, by its digest

    @classmethod
    def read(cls, file: Path) -> RunLines:
        """Return the descriptions in a file; none if it cannot be read."""
        runs, at = cls(file), 0
        if file.is_symlink() or not file.is_file():  # no run made it, or it may have no end
            return runs
        with suppress(OSError), file.open("rb") as lines:
            for line in lines:
                if line.startswith(_RUN):
                    runs.add(line, at)
                at += len(line)
        return runs

    def __contains__(self, settings: str) -> bool:
        return settings in self._runs

    def add(self, line: bytes, offset: int) -> None:
        """Add a line of the file; one that is torn or odd describes nothing."""
        with suppress(ValueError, RecursionError):
            fields = json.loads(line)
            settings, spec, profile = str(fields.get("run")), fields.get("spec"), fields.get("profile")
            run = self.of(str(fields.get("of")))
            if isinstance(spec, dict) and isinstance(profile, dict):
                run = CaptionRun(spec, profile)
                self._origins[run.digest] = settings
            if run is not None:
                self._runs[settings], self._lines[settings] = run, RunLine(offset, len(line), settings)

    def line(self, settings: str, run: CaptionRun) -> bytes:
        """Return the line that describes the run of these settings."""
        if (origin := self._origins.get(run.digest)) is not None:
            return encode_line(json_text({"run": settings, "of": origin}) + "\n")
        return encode_line(json_text({"run": settings, "spec": run.spec, "profile": run.profile}) + "\n")

    def append(self, settings: str, run: CaptionRun) -> None:
        """Append a description to the file that is no journal, after the torn line of a crash, if there is one.

        Raises:
            OSError: it cannot be written.
        """
        line = self.line(settings, run)
        with open_own(self.file, "ab") as file:
            if (size := file.tell()) > 0:
                with self.file.open("rb") as written:
                    written.seek(size - 1)
                    size += file.write(b"" if written.read(1) == b"\n" else b"\n")
            file.write(line)
        self.add(line, size)

    def of(self, settings: str) -> CaptionRun | None:
        """Return how captions with these settings were made; None if that is not known."""
        return self._runs.get(settings)

    @property
    def described(self) -> list[CaptionRun]:
        """All runs that are described, in the order of their lines."""
        return [self._runs[settings] for settings in self._origins.values()]

    @property
    def latest(self) -> CaptionRun | None:
        """The run that was described last; None if none is."""
        return next(reversed(self.described), None)

    def used(self, settings: Collection[str]) -> Iterator[RunLine]:
        """Yield the lines that captions with these settings need, origins before the lines that name them."""
        origins = {self._origins[run.digest] for one in settings if (run := self.of(one)) is not None}
        return (line for one, line in self._lines.items() if one in origins or one in settings)


class JournalEntry(NamedTuple):
    """Index entry of a record in a journal: its place in the file (bytes) and its identity.

    ``segment`` and ``segments`` are None for a whole clip; ``failed`` is True for an error record. ``start`` and
    ``end`` are seconds, from 0 to infinity where the record has none.
    """

    journal: Journal
    offset: int
    length: int
    clip: str = ""
    settings: str = ""
    segment: int | None = None
    segments: int | None = None
    content: FileContent = FileContent(None, None)
    failed: bool = True
    path: str = ""
    start: float = 0.0
    end: float = inf

    def record(self) -> RecordDict:
        """Read the record.

        Raises:
            OutputError: it cannot be read any more.
        """
        return next(self.journal.read([self]))


class JournalIndex:
    """Records of a journal by clip, settings and segment, and its other lines.

    Args:
        journal: the journal.
        runs: the descriptions of its runs, in it or beside it.
        earlier: index of an earlier file that is put aside; its marks stay known.

    Attributes:
        size: bytes of the lines.
        entries: all lines but marks in file order, damaged ones included.
        marks: marks of the files written from it.
        clips: the records that count, by clip, settings and segment.
        existing: text of the caption file that was there before the first caption, by clip.
    """

    def __init__(self, journal: Journal, runs: RunLines, earlier: JournalIndex | None = None) -> None:
        self.journal, self.runs, self.size = journal, runs, 0
        self.marks: FileMarks = FileMarks(journal.path) if earlier is None else earlier.marks
        self.existing: dict[str, str] = {} if earlier is None else earlier.existing
        self.entries: list[JournalEntry] = []
        self.clips: dict[str, dict[str, dict[int | None, JournalEntry]]] = {}

    def add_line(self, line: bytes, record: RecordDict | None = None) -> bool:
        """Add the line at the end of the file, with its ``record`` if that is known; return False if it is damaged."""
        if (mark := parsed_mark(line)) is not None:
            self.marks.add(mark._replace(offset=self.size, length=len(line)))
        elif line.startswith(_RUN):
            self.runs.add(line, self.size)
        elif (record := record or parse_record(line)) is not None:
            self.add(self.journal, self.size, len(line), record)
        else:
            return False
        self.size += len(line)
        return True

    def add_damaged(self, line: bytes) -> None:
        """Add a damaged line at the end of the file."""
        self.entries.append(JournalEntry(self.journal, self.size, len(line)))
        self.size += len(line)

    def add(self, journal: Journal, offset: int, length: int, record: RecordDict) -> None:
        """Add the record in a line; it replaces those that it supersedes."""
        job, flat = record["job"], {**record, **record["job"]}
        part = job["clip"], job["settings"], job.get("segment"), job.get("segments"), FileContent.of_job(job)
        failed, start, end = record.get("error") is not None, flat.get("start") or 0.0, flat.get("end")
        span = str(flat.get("path", "")), start, inf if end is None else end
        entry = JournalEntry(journal, offset, length, *part, failed, *span)
        parts = self.clips.setdefault(entry.clip, {}).setdefault(entry.settings, {})
        self.entries.append(entry)
        if failed and any(_is_better(old, entry) for old in parts.values()):
            return
        for key in [key for key, old in parts.items() if not _coexist(old, entry)]:
            del parts[key]
        parts[entry.segment] = entry
        if "existing" in job:
            self.existing[entry.clip] = job["existing"]

    def parts(self, clip: str, settings: str) -> Mapping[int | None, JournalEntry]:
        """Return the records of a clip under these settings, by segment (None for the whole clip)."""
        return self.clips.get(clip, {}).get(settings, {})

    def other_settings_count(self, settings: Collection[str]) -> int:
        """Return the number of records made under other settings than these."""
        named = (item for by_settings in self.clips.values() for item in by_settings.items())
        return sum(len(parts) for other, parts in named if other not in settings)

    @property
    def settings(self) -> set[str]:
        """Settings of the records that count."""
        return {settings for by_settings in self.clips.values() for settings in by_settings}

    def current(self) -> Iterator[JournalEntry]:
        """Yield the records that count, in file order."""
        return (entry for entry in self.entries if self._is_current(entry))

    def void(self) -> Iterator[JournalEntry]:
        """Yield the records that others supersede."""
        return (entry for entry in self.entries if entry.clip and not self._is_current(entry))

    def in_order(self, clips: Sequence[str]) -> list[RunLine | JournalEntry | FileMark]:
        """Return the lines that count: runs, records of other clips, those of ``clips`` in this order, then marks."""
        rank = {clip: place for place, clip in enumerate(clips)}

        def place_of(entry: JournalEntry) -> tuple[int, int]:
            return (rank[entry.clip], entry.segment or 0) if entry.clip in rank else (-1, -1)

        described = self.runs.used(self.settings) if self.runs.file == self.journal.path else ()
        return [*described, *sorted(self.current(), key=place_of), *sorted(self.marks)]

    def _is_current(self, entry: JournalEntry) -> bool:
        return self.parts(entry.clip, entry.settings).get(entry.segment) is entry


def is_in_place(lines: Sequence[RunLine | JournalEntry | FileMark], size: int) -> bool:
    """Return True if these lines are all of a file of ``size`` bytes, in this order."""
    ascending = all(item.offset < following.offset for item, following in pairwise(lines))
    return ascending and sum(item.length for item in lines) == size


def _is_better(old: JournalEntry, failed: JournalEntry) -> bool:
    """Return True if a caption stands although captioning failed later: of the same content, and of the same part."""
    return not old.failed and old.content.same(failed.content) and failed.segment in (None, old.segment)


def _coexist(old: JournalEntry, new: JournalEntry) -> bool:
    """Return True if ``new`` does not supersede ``old``: another segment of the same content and division."""
    return (
        old.segment is not None
        and new.segment is not None
        and (old.segments == new.segments and old.content.same(new.content) and old.segment != new.segment)
    )


def parse_record(line: bytes) -> RecordDict | None:
    """Parse the record in ``line``; None if there is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    job = value.get("job")
    if not (isinstance(job, dict) and isinstance(value.get("path"), str)):
        return None
    flat = {"clip": None, "settings": None, **value, **job}
    kinds = _TYPES.items()
    return value if all(isinstance(flat[key], kind) for key, kind in kinds if key in flat) else None
