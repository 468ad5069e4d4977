"""The captions of some places: their records, how they were made, and the texts that hold now.

A place is a folder, a journal, or any file of records. Its journals are joined with the files beside the clips: a file
that somebody edited, or that no run wrote, wins over the record of its clip. Everything that shows captions reads this.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, overload

from vidspec.bounds import LONGEST_PROMPT
from vidspec.errors import UsageError
from vidspec.events.record import Caption, RecordDict
from vidspec.files import read_text
from vidspec.runs.formats.base import MARK, SECOND_TEXTS
from vidspec.runs.job import Job
from vidspec.runs.store.file_states import FileMark, FileMarks, FileState, file_state
from vidspec.runs.store.journal import Journal
from vidspec.runs.store.journal_index import JournalEntry
from vidspec.runs.store.records import clip_id, content_of
from vidspec.runs.store.run_lines import CaptionRun
from vidspec.runs.store.segment_videos import SegmentVideos, shared_end

__all__ = [
    "CAPTION_STATES",
    "CaptionEntry",
    "CaptionSet",
    "CaptionState",
    "HeldRecords",
    "MarkedFiles",
    "caption_state",
]

CaptionState: TypeAlias = Literal["written", "edited", "foreign", "superseded", "missing", "failed"]
#: What each state of a caption means.
CAPTION_STATES: Mapping[str, str] = {
    "missing": "there is no caption yet",
    "failed": "captioning failed; there is no caption",
    "written": "as a run wrote it",
    "superseded": "as a run wrote it, but the clip has changed since, or a later run was stopped",
    "edited": "edited since a run wrote it; runs keep it",
    "foreign": "written by no run; runs keep it",
}
#: Formats whose file of a clip is its caption and nothing else.
_TEXTS = ("txt", "webdataset-txt", "text")


@dataclass(frozen=True, slots=True)
class CaptionEntry:
    """A clip, or a segment of one, with its caption.

    Attributes:
        clip: the 16 hex digits of the clip.
        path: the clip as the user named it.
        start, end: of the captioned part, in seconds; 0 and infinity for a whole clip.
        segment, segments: index of the segment, from 0, and their number; None for a whole clip.
        record: what a run recorded; None for a file that no run wrote.
        run: how the caption was made; None if that is not known, as before version 0.5.0.
        file: the file that shows the caption; None if none does.
        text: the text that holds now; None if there is none.
        state: of the caption.
    """

    clip: str
    path: str
    start: float
    end: float
    segment: int | None
    segments: int | None
    record: RecordDict | None
    run: CaptionRun | None
    file: Path | None
    text: str | None
    state: CaptionState

    @property
    def shown(self) -> RecordDict:
        """The record with the text that holds now, for formats."""
        if self.record is not None and self.state not in ("edited", "foreign"):
            return self.record
        text = self.text or ""
        made = self.record or Caption(self.path, None).to_dict() | {"job": {"clip": self.clip, "settings": ""}}
        marked = bool(made.get("demo")) and text.startswith(MARK)
        job = {key: value for key, value in made["job"].items() if key not in ("segment", "segments")}
        if self.segment is None:
            made = {**made, "job": job, "summary": None} if "summary" in made else {**made, "job": job}
        return {**made, "caption": text.removeprefix(MARK) if marked else text, "demo": marked or None, "error": None}


class MarkedFiles:
    """The caption files of clips, found by the marks of journals.

    Args:
        journals: marks of the journals; those of one may be added to meanwhile.
    """

    def __init__(self, journals: Iterable[FileMarks]) -> None:
        self.journals = tuple(journals)
        self._of_clips: dict[tuple[str, int | None], list[tuple[FileMarks, FileMark]]] = {}
        self._unnamed: dict[str, list[tuple[FileMarks, FileMark]]] = {}  # of earlier versions, by the file's stem
        for marks in self.journals:
            for mark in marks:
                if mark.format not in _TEXTS:
                    continue
                if mark.clip is not None:
                    self._of_clips.setdefault((mark.clip, mark.segment), []).append((marks, mark))
                else:
                    self._unnamed.setdefault(Path(mark.file).stem, []).append((marks, mark))

    def of(self, clip: str, segment: int | None, path: str) -> list[tuple[Path, FileMark]]:
        """Return the caption files of a clip or its segment, each with its last mark, in the order of these."""
        found = {marks.path(mark): mark for marks, mark in self._of_clips.get((clip, segment), ())}
        if not found and self._unnamed:
            stem = Path(path).stem if segment is None else f"{Path(path).stem}-{segment + 1:03d}"
            found = _nearest(path, self._unnamed.get(stem, ()))
        return [*found.items()]

    def state(self, path: Path) -> FileState:
        """Return the state of a file."""
        return file_state(path, self.journals)


def _nearest(path: str, several: Iterable[tuple[FileMarks, FileMark]]) -> dict[Path, FileMark]:
    """Return of files with the name of a clip those whose folders are most like the clip's."""
    folder = Path(path).absolute().parent
    found = {marks.path(mark): mark for marks, mark in several}
    most = max((shared_end(file.parent, folder) for file in found), default=0)
    return {file: mark for file, mark in found.items() if shared_end(file.parent, folder) == most}


class _Held(NamedTuple):
    """Parts of an entry: its record, if there is one, and the file that shows it."""

    record: JournalEntry | None
    clip: str
    path: str
    segment: int | None
    file: Path | None
    state: CaptionState


#: Records of a clip by settings, in the order in which these were first met, and by segment.
_Captionings: TypeAlias = dict[str, dict[int | None, JournalEntry]]


class CaptionSet(Sequence[CaptionEntry]):
    """One entry for each clip and part, read from the disk when it is asked for.

    Args:
        journals: the records; of one captioning in several, the last success counts, else the last failure.
        files: clips with their caption files, which count although no journal has a record or a mark of them.
        marks: marks of further journals that name files of these clips.
        one_each: of a clip that was captioned in several ways, take what its file shows, else the last.
        settings: those to take of a clip then, if it has records under them.
        order: clips in their order, to keep that of the journals; None to sort all by path and time.

    Attributes:
        copies: temporary files with records; None without any.
    """

    def __init__(
        self,
        journals: Sequence[Journal],
        files: Iterable[tuple[Job, Path]] = (),
        *,
        marks: Iterable[FileMarks] = (),
        one_each: bool = False,
        settings: Mapping[str, str] | None = None,
        order: Sequence[str] | None = None,
    ) -> None:
        self.journals, self._settings = journals, settings or {}
        self.copies: object = None
        self.files = MarkedFiles([*(journal.index.marks for journal in journals), *marks])
        self._kept: dict[str, tuple[str, Path, CaptionState]] = {}  # path, file and its state, by clip
        for job, path in files:
            state = self.files.state(path)
            if state in ("edited", "foreign") and not path.is_symlink():
                self._kept[clip_id(job)] = job.path, path, state
        self._held = self._ordered(one_each=one_each, order=order)

    def one_each(self) -> CaptionSet:
        """Return the same captions with one of each clip: what its file shows, else the last; sorted by path."""
        chosen = copy(self)
        chosen._held = self._ordered(one_each=True, order=None)
        return chosen

    def _ordered(self, *, one_each: bool, order: Sequence[str] | None) -> list[_Held]:
        held = [*self._join(one_each=one_each)]
        if order is None:
            return sorted(held, key=_by_path)
        held.sort(key=lambda one: 0 if one.record is None else one.record.offset)
        if any(one.record is None for one in held):  # these have no place in a journal
            rank = {clip: place for place, clip in enumerate(order)}
            held.sort(key=lambda one: (rank[one.clip], one.segment or 0) if one.clip in rank else (-1, 0))
        return held

    @property
    def records(self) -> HeldRecords:
        """The records with the texts that hold now."""
        return HeldRecords(self)

    @property
    def duplicates(self) -> int:
        """Number of records that those of other journals superseded."""
        several = Counter((e.clip, e.settings, e.segment) for one in self.journals for e in one.index.current())
        return several.total() - len(several)

    @property
    def torn(self) -> int:
        """Number of lines that a crash cut off."""
        return sum(journal.repaired > 0 for journal in self.journals)

    @property
    def failed(self) -> int:
        """Number of clips and parts without a caption."""
        return sum(one.state == "failed" for one in self._held)

    def __len__(self) -> int:
        return len(self._held)

    @overload
    def __getitem__(self, index: int) -> CaptionEntry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CaptionEntry]: ...
    def __getitem__(self, index: int | slice) -> CaptionEntry | Sequence[CaptionEntry]:
        several = [*self._read(self._held[index] if isinstance(index, slice) else [self._held[index]])]
        return several if isinstance(index, slice) else several[0]

    def __iter__(self) -> Iterator[CaptionEntry]:
        return self._read(self._held)

    def _read(self, several: Iterable[_Held]) -> Iterator[CaptionEntry]:
        for journal, group in groupby(several, key=lambda one: one.record and one.record.journal):
            if journal is None:
                yield from (_entry(one, None, None) for one in group)
                continue
            run = list(group)
            records = journal.read([one.record for one in run if one.record is not None])
            for one, record in zip(run, records, strict=True):
                if not record:
                    raise UsageError(f"{journal.shown}: was changed while it was read", hint="wait for its run to end")
                yield _entry(one, record, journal.runs.of(record["job"]["settings"]))

    def _join(self, *, one_each: bool) -> Iterator[_Held]:
        clips, shown = self._records(), set()
        for clip, found in clips.items():
            chosen = [self._chosen_settings(clip, found)] if one_each else found
            for settings, parts in ((one, found[one]) for one in chosen):
                for held in self._joined(clip, None if one_each else settings, parts):
                    shown |= set() if held.state == "written" else {held.file}
                    yield held
        for clip, (path, file, state) in self._kept.items():
            known = Path(os.path.realpath(file.parent), file.name) in shown  # the clip has another name there
            if clip not in clips and not known:
                yield _Held(None, clip, path, None, file, state)

    def _joined(self, clip: str, settings: str | None, parts: Mapping[int | None, JournalEntry]) -> Iterator[_Held]:
        """Yield what a clip's records and files make: one if a file of the whole clip was edited."""
        first = next(iter(parts.values()))
        whole = self._file(first, None, settings)
        if whole is not None and whole[1] in ("edited", "foreign"):
            yield _Held(first, clip, first.path, None, *whole)
            return
        for number, entry in parts.items():
            file, state = (whole if number is None else self._file(entry, number, settings) or whole) or (None, None)
            if entry.failed and state not in ("edited", "foreign"):
                state = "failed"
            yield _Held(entry, clip, entry.path, number, file, state or "written")

    def _file(self, entry: JournalEntry, segment: int | None, settings: str | None) -> tuple[Path, CaptionState] | None:
        """Return the file that shows a record, and the caption's state; None if none ever did.

        Without ``settings`` a file that somebody edited shows the clip, whatever was in it before.
        """
        found: tuple[Path, CaptionState] | None = None
        for file, mark in self.files.of(entry.clip, segment, entry.path):
            if mark.settings not in (settings or mark.settings, entry.settings):
                continue
            state = self.files.state(file)
            others = [one for marks in self.files.journals for one in marks.of(file) if one is not mark]
            found = file, caption_state(file, state, [*others, mark], [entry])
            if state in ("edited", "foreign"):
                return found
        if segment is None and found is None and (kept := self._kept.get(entry.clip)) is not None:
            found = kept[1:] if settings is None or kept[2] == "foreign" else None
        return found

    def _records(self) -> Mapping[str, _Captionings]:
        """Return the records that count, by clip."""
        if len(self.journals) == 1:
            return self.journals[0].index.clips
        clips: dict[str, _Captionings] = {}
        for entry in (entry for journal in self.journals for entry in journal.index.current()):
            parts = clips.setdefault(entry.clip, {}).setdefault(entry.settings, {})
            old = parts.get(entry.segment)
            if old is None or not entry.failed or old.failed:
                parts[entry.segment] = entry
        for parts in (parts for found in clips.values() for parts in found.values()):
            if len(parts) > 1 and None in parts:  # a failure to cut a clip is void once it has been cut
                del parts[None]
        return clips

    def _chosen_settings(self, clip: str, found: _Captionings) -> str:
        """Return the settings that were asked for, of what a clip's file showed last, or of its last success."""
        if (wanted := self._settings.get(clip)) in found:
            return str(wanted)
        entries = [entry for parts in found.values() for entry in parts.values()]
        shown: dict[str, int] = {}
        for segment in {None, *(entry.segment for entry in entries)}:
            for _, mark in self.files.of(clip, segment, entries[0].path):
                if mark.settings in found:
                    shown[mark.settings] = max(mark.offset, shown.get(mark.settings, 0))
        if shown:
            return max(shown, key=lambda settings: shown[settings])
        succeeded = [one for one, parts in found.items() if not all(entry.failed for entry in parts.values())]
        return (succeeded or [*found])[-1]


class HeldRecords(Sequence[RecordDict]):
    """The records of a set with the texts that hold now, read as they are needed, and facts about all of them."""

    def __init__(self, captions: CaptionSet) -> None:
        self.captions = captions

    @property
    def failed(self) -> int:
        return self.captions.failed

    def __len__(self) -> int:
        return len(self.captions)

    @overload
    def __getitem__(self, index: int) -> RecordDict: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RecordDict]: ...
    def __getitem__(self, index: int | slice) -> RecordDict | Sequence[RecordDict]:
        found = self.captions[index]
        return found.shown if isinstance(found, CaptionEntry) else [one.shown for one in found]

    def __iter__(self) -> Iterator[RecordDict]:
        return (entry.shown for entry in self.captions)

    def listed(self) -> Iterator[RecordDict]:
        """Yield the records for a list of files: of a film that ``--cut`` cut, the segments whose videos are there."""
        videos = SegmentVideos(self.captions.journals)
        for record in self:
            if not videos.was_cut(record):
                yield record
            elif (clip := videos.clip(record)) is not None:
                yield clip

    @property
    def data(self) -> dict[str, object]:
        """Properties of answers in JSON, each with a schema that permits any value."""
        answers = (record.get("data") for record in self)
        return {name: True for answer in answers if isinstance(answer, dict) for name in answer}

    @property
    def texts(self) -> list[str]:
        """Those of ``SECOND_TEXTS`` that a record has."""
        left = [*SECOND_TEXTS]
        for record in self:
            left = [key for key in left if record.get(key) is None]
            if not left:
                break
        return [key for key in SECOND_TEXTS if key not in left]

    @property
    def measured(self) -> bool:
        """True if all records of runs have measurements."""
        return all("timings" in record for record in self)


def _by_path(held: _Held) -> tuple[str, float, float, str]:
    entry = held.record
    if entry is None:
        return held.path, 0.0, float("inf"), ""
    return entry.path, entry.start, entry.end, entry.settings


def _entry(held: _Held, record: RecordDict | None, run: CaptionRun | None) -> CaptionEntry:
    """Return an entry with its text.

    Raises:
        UsageError: the file that wins over the record is no text.
    """
    text: str | None = None if record is None else record.get("caption")
    if held.file is not None and held.state in ("edited", "foreign"):
        text = read_text(held.file, LONGEST_PROMPT, str(held.file)).strip()
    place = (0.0, float("inf")) if held.record is None else (held.record.start, held.record.end)
    segments = None if held.record is None or held.segment is None else held.record.segments
    return CaptionEntry(held.clip, held.path, *place, held.segment, segments, record, run, held.file, text, held.state)


def caption_state(
    file: Path, state: FileState, marks: Sequence[FileMark], entries: Iterable[JournalEntry]
) -> CaptionState:
    """Return the state of the caption in a file.

    Args:
        file: the file.
        state: of the file.
        marks: its marks, the last one at the end.
        entries: the records that it shows by that mark.
    """
    if state == "free":
        return "missing"
    if state != "written":
        return state
    earlier = {one.sha256 for one in marks} - {marks[-1].sha256}  # after its last mark a run was stopped
    is_earlier = bool(earlier) and hashlib.sha256(file.read_bytes()).hexdigest() in earlier
    return "superseded" if is_earlier or not all(map(_is_present, entries)) else "written"


def _is_present(entry: JournalEntry) -> bool:
    """Return True unless the clip of a record is there with other content; a hash is computed where times differ."""
    known, now = entry.content, content_of(entry.path)
    if now.size is None or known.size is None or known.same(now):
        return True
    return known.sha256 is not None and known.same(content_of(entry.path, checksum=True))
