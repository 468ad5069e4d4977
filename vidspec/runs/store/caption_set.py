"""The captions of some places: their records, how they were made, and the texts that hold now.

A place is a folder, a journal, or any file of records. Its journals are joined with the files beside the clips: a file
that somebody edited, or that no run wrote, wins over the record of its clip. Everything that shows captions reads this.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from vidspec.bounds import LONGEST_PROMPT
from vidspec.errors import UsageError
from vidspec.events.record import Caption, RecordDict
from vidspec.files import read_text
from vidspec.runs.formats.base import MARK, SECOND_TEXTS, holds_caption, make_format
from vidspec.runs.job import Job
from vidspec.runs.store.journal import Journal
from vidspec.runs.store.journal_lines import CaptionRun, FileMark, JournalEntry
from vidspec.runs.store.known_journals import FileState, KnownJournals
from vidspec.runs.store.records import clip_id, content_of
from vidspec.runs.store.sidecars import SegmentVideos, segment_stem, shared_end

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


class _Held(NamedTuple):
    """Parts of an entry: its record, if there is one, and the file that shows it."""

    record: JournalEntry | None
    clip: str
    path: str
    segment: int | None
    file: Path | None
    state: CaptionState
    form: str = "txt"


#: Records of a clip by settings, in the order in which these were first met, and by segment.
_Captionings: TypeAlias = dict[str, dict[int | None, JournalEntry]]


class CaptionSet:
    """One entry for each clip and part, read from the disk when it is asked for.

    Args:
        journals: the records; of one captioning in several, the last success counts, else the last failure.
        known: reads the journals around caption files.
        files: clips with caption files, and their formats, that the journals may have no record or mark of.
        one_each: of a clip that was captioned in several ways, take what its file shows, else the last.
        settings: those to take of a clip then, if it has records under them.
        order: clips in their order, to keep that of the journals; None to sort all by path and time.

    Attributes:
        copies: temporary files with records; None without any.
    """

    def __init__(
        self,
        journals: Sequence[Journal],
        known: KnownJournals,
        files: Iterable[tuple[Job, Path, str]] = (),
        *,
        one_each: bool = False,
        settings: Mapping[str, str] | None = None,
        order: Sequence[str] | None = None,
    ) -> None:
        self.journals, self._known, self._settings = journals, known, settings or {}
        self.copies: object = None
        self._files: dict[str, dict[Path, str]] = {}  # with their formats, by clip
        self._unnamed: dict[str, list[Path]] = {}  # texts of earlier versions, by stem
        for path in (path for one in journals for path in one.index.marks.caption_files(None)):
            if path.suffix == ".txt":
                self._unnamed.setdefault(path.stem, []).append(path)
        self._kept: dict[str, tuple[str, Path, CaptionState, str]] = {}  # path, file, its state and format, by clip
        for job, path, form in files:
            self._files.setdefault(clip_id(job), {})[path] = form
            state = self._known.state(path, self.journals)
            if state in ("edited", "foreign") and not path.is_symlink():
                self._kept.setdefault(clip_id(job), (job.path, path, state, form))
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

    def __iter__(self) -> Iterator[CaptionEntry]:
        for journal, group in groupby(self._held, key=lambda one: one.record and one.record.journal):
            if journal is None:
                yield from (_entry(one, None, None) for one in group)
                continue
            run = list(group)
            records = journal.read([one.record for one in run if one.record is not None])
            for one, record in zip(run, records, strict=True):
                if not record:
                    raise UsageError(f"{journal.shown}: was changed while it was read", hint="wait for its run to end")
                yield _entry(one, record, journal.index.runs.of(record["job"]["settings"]))

    def _join(self, *, one_each: bool) -> Iterator[_Held]:
        clips, shown = self._records(), set()
        for clip, found in clips.items():
            chosen = [self._chosen_settings(clip, found)] if one_each else found
            for settings, parts in ((one, found[one]) for one in chosen):
                for held in self._joined(clip, None if one_each else settings, parts):
                    shown |= set() if held.state == "written" else {held.file}
                    yield held
        for clip, (path, file, state, form) in self._kept.items():
            known = Path(os.path.realpath(file.parent), file.name) in shown  # the clip has another name there
            if clip not in clips and not known:
                yield _Held(None, clip, path, None, file, state, form)

    def _joined(self, clip: str, settings: str | None, parts: Mapping[int | None, JournalEntry]) -> Iterator[_Held]:
        """Yield what a clip's records and files make: one if a file of the whole clip was edited."""
        first = next(iter(parts.values()))
        whole = self._file(first, None, settings)
        if whole is not None and whole[1] in ("edited", "foreign"):
            yield _Held(first, clip, first.path, None, *whole)
            return
        for number, entry in parts.items():
            shown = whole if number is None else self._file(entry, number, settings) or whole
            file, state, form = shown or (None, "written", "txt")
            if entry.failed and state not in ("edited", "foreign"):
                state = "failed"
            yield _Held(entry, clip, entry.path, number, file, state, form)

    def _file(
        self, entry: JournalEntry, segment: int | None, settings: str | None
    ) -> tuple[Path, CaptionState, str] | None:
        """Return the file that shows a record, the caption's state, and the file's format; None if none ever did.

        Without ``settings`` a file that somebody edited shows the clip, whatever was in it before.
        """
        found: tuple[Path, CaptionState, str] | None = None
        for file, form in self._files_of(entry.clip, segment, entry.path).items():
            state = self._known.state(file, self.journals)
            marks = [mark for _, mark in self._known.marks(file, self.journals)]
            if marks:
                if marks[-1].settings not in (settings or marks[-1].settings, entry.settings):
                    continue
                found = file, caption_state(file, state, marks, [entry]), form
            elif state == "foreign" and not file.is_symlink():
                found = file, state, form
            if state in ("edited", "foreign"):
                return found
        return found

    def _files_of(self, clip: str, segment: int | None, path: str) -> dict[Path, str]:
        """Return the caption files of a clip or its segment, texts first; unnamed ones where folders are most alike."""
        found = dict(self._files.get(clip, {})) if segment is None else {}
        real = {Path(os.path.realpath(path.parent), path.name) for path in found}
        for one in self.journals:
            marked = one.index.marks.caption_files(clip, segment)
            found |= {path: form for path, form in marked.items() if path not in real}
        if found:
            return dict(sorted(found.items(), key=lambda one: holds_caption(one[1]) != "text"))
        stem = Path(path).stem if segment is None else segment_stem(path, segment)
        several, folder = self._unnamed.get(stem, []), Path(path).absolute().parent
        most = max((shared_end(file.parent, folder) for file in several), default=0)
        return dict.fromkeys((file for file in several if shared_end(file.parent, folder) == most), "txt")

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
            for file in self._files_of(clip, segment, entries[0].path):
                for _, mark in self._known.marks(file, self.journals)[-1:]:
                    if mark.settings in found:
                        shown[mark.settings] = max(mark.offset, shown.get(mark.settings, 0))
        if shown:
            return max(shown, key=lambda settings: shown[settings])
        succeeded = [one for one, parts in found.items() if not all(entry.failed for entry in parts.values())]
        return (succeeded or [*found])[-1]


class HeldRecords(Collection[RecordDict]):
    """The records of a set with the texts that hold now, read as they are needed, and facts about all of them."""

    def __init__(self, captions: CaptionSet) -> None:
        self.captions = captions

    @property
    def failed(self) -> int:
        return self.captions.failed

    def __len__(self) -> int:
        return len(self.captions)

    def __contains__(self, record: object) -> bool:
        return any(one == record for one in self)

    def __iter__(self) -> Iterator[RecordDict]:
        return (entry.shown for entry in self.captions)

    def listed(self, *, cut: bool = False) -> Iterator[RecordDict]:
        """Yield the records for a list of files: of films that were cut, or of all, the segments with videos."""
        videos = SegmentVideos(self.captions.journals)
        for record in self:
            if not (cut or videos.was_cut(record)):
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
        text = read_caption(held.file, held.form)
    place = (0.0, float("inf")) if held.record is None else (held.record.start, held.record.end)
    segments = None if held.record is None or held.segment is None else held.record.segments
    return CaptionEntry(held.clip, held.path, *place, held.segment, segments, record, run, held.file, text, held.state)


def read_caption(file: Path, form: str) -> str:
    """Return the caption in a clip's file of a format.

    Raises:
        UsageError: the file cannot be read, or is no longer in its format.
    """
    text = read_text(file, LONGEST_PROMPT, str(file))
    try:
        return make_format(form).read_caption(text)
    except ValueError:
        raise UsageError(f"{file}: is no longer {form}", hint="mend it, or move it away") from None


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
