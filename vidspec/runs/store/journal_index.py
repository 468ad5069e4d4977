"""Index of a journal in memory: which of its lines count. Opens no file.

A later record of a clip under the same settings replaces an earlier one, and segments those of another division; but a
failure replaces no caption of the same content.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from vidspec.events.record import RecordDict
from vidspec.runs.store.file_marks import FileMark, FileMarks
from vidspec.runs.store.records import FileContent

if TYPE_CHECKING:
    from vidspec.runs.store.journal import Journal


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
    """Records and file marks of a journal, by clip, settings and segment.

    Attributes:
        entries: all lines but marks in file order, damaged ones included.
        marks: marks of the files written from it.
        clips: the records that count, by clip, settings and segment.
        existing: text of the caption file that was there before the first caption, by clip.
    """

    def __init__(self, marks: FileMarks, existing: Mapping[str, str] | None = None) -> None:
        self.marks = marks
        self.existing = dict(existing or {})
        self.entries: list[JournalEntry] = []
        self.clips: dict[str, dict[str, dict[int | None, JournalEntry]]] = {}

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

    def in_order(self, clips: Sequence[str]) -> list[JournalEntry | FileMark]:
        """Return the lines that count: records of other clips, then those of ``clips`` in this order, then marks."""
        rank = {clip: place for place, clip in enumerate(clips)}

        def place_of(entry: JournalEntry) -> tuple[int, int]:
            return (rank[entry.clip], entry.segment or 0) if entry.clip in rank else (-1, -1)

        return [*sorted(self.current(), key=place_of), *sorted(self.marks)]

    def _is_current(self, entry: JournalEntry) -> bool:
        return self.parts(entry.clip, entry.settings).get(entry.segment) is entry


def is_in_place(lines: Sequence[JournalEntry | FileMark], size: int) -> bool:
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
