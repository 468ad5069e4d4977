"""Caption files as they are on disk, for review: read with their states, and replaced by texts of a person."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from vidspec.bounds import LONGEST_PROMPT
from vidspec.display.pages.review import ReviewRow
from vidspec.errors import OutputError, UsageError, option
from vidspec.escaping import one_line
from vidspec.events.record import Caption, RecordDict, checking_records
from vidspec.files import decode_text, encode_line, read_whole, write_whole
from vidspec.runs.job import Job, asked_of, prompt_of
from vidspec.runs.planning import RunPlan
from vidspec.runs.renderers import in_order, make_folder
from vidspec.runs.sources.base import is_shard
from vidspec.runs.store.file_states import ChangedFiles, FileMarks, KnownFiles
from vidspec.runs.store.journal import Journal, JournalEntry, lock_file
from vidspec.runs.store.records import FileContent, clip_id, content_of, record_of
from vidspec.runs.store.sidecars import JournalFinder, SidecarNames
from vidspec.runs.stores import is_url

__all__ = [
    "STATES",
    "CaptionFiles",
    "ChangedOnDiskError",
    "ReviewState",
    "ReviewedClip",
    "check_reviewable",
    "review_rows",
]

ReviewState: TypeAlias = Literal["missing", "written", "superseded", "edited", "foreign"]
#: What each state means.
STATES: Mapping[str, str] = {
    "missing": "there is no caption yet",
    "written": "as a run wrote it",
    "superseded": "as a run wrote it, but the clip has changed since, or a later run was stopped",
    "edited": "edited since a run wrote it; runs keep it",
    "foreign": "written by no run; runs keep it",
}
#: Texts that may end a caption file. One of them differs from all that runs wrote, of which a journal knows two.
_ENDINGS = ("\n", "", "\n\n")


@dataclass(frozen=True)
class ReviewedClip:
    """A clip with its caption file.

    Attributes:
        job: the clip.
        file: its caption file, which may be missing.
        state: of the file.
        text: its text without blanks around it; None if it cannot be shown.
        version: hash of its bytes; empty if there is none.
        trouble: reason why it, or the record, cannot be shown.
        record: the record that a run wrote the file from, if it is known.
    """

    job: Job
    file: Path
    state: ReviewState
    text: str | None
    version: str
    trouble: str = ""
    record: RecordDict | None = None

    @property
    def listed(self) -> str:
        """Caption in the list that names the clip, as a JSONL of records, if its file is missing; empty if none."""
        caption = self.job.columns.get("caption") if self.state == "missing" else None
        return caption.strip() if isinstance(caption, str) else ""


class ChangedOnDiskError(OutputError):
    """The file changed since it was shown; ``clip`` is what it is now."""

    def __init__(self, clip: ReviewedClip) -> None:
        super().__init__(f"{clip.file}: has changed on the disk since it was shown, and was not replaced")
        self.clip = clip


def check_reviewable(planned: RunPlan) -> SidecarNames:
    """Return the names of the caption files of a planned run.

    Raises:
        UsageError: clips have no text file of their own, or are not files of this machine.
    """
    from vidspec.runs.clip_files import ClipFiles
    from vidspec.runs.segment_files import SegmentFiles

    files = [one for one in planned.renderers if isinstance(one, ClipFiles) and not isinstance(one, SegmentFiles)]
    several = [names for one in files for names in one.names]
    if len(several) != 1 or len(planned.renderers) != 1 or several[0].form.suffix == ".json":
        message = f"{option('format', planned.spec.format)}: review edits one file of text for each clip"
        raise UsageError(message, hint=f"give {option('format', 'txt')}, which caption and review both take")
    for job in planned.entries:
        if job.shard is not None or is_shard(job.path) or is_url(job.path):
            raise UsageError(f"{job.path}: review needs clips that are files", hint="unpack or fetch them")
    return several[0]


class CaptionFiles:
    """The caption files of the clips of a run. Threads may share it.

    Args:
        planned: the run that writes these files; none of it is carried out.

    Raises:
        UsageError: see :func:`check_reviewable`.
    """

    def __init__(self, planned: RunPlan) -> None:
        self._names = check_reviewable(planned)
        self.jobs: Sequence[Job] = planned.entries
        self._spec, self._profile = planned.spec, planned.profile
        self._saving = threading.Lock()
        self._marks = ChangedFiles(FileMarks.read)
        self._journals = ChangedFiles(lambda path: Journal(path, read_only=True))

    def prompt(self, job: Job) -> str:
        """Return the prompt that the run asks about a clip."""
        return prompt_of(job, self._spec, self._profile)

    def asked(self, job: Job, prompt: str) -> str | None:
        """Return a person's prompt for the model, or the run's, in which values of columns stay plain text."""
        return asked_of(job, self._profile) if prompt == self.prompt(job) else prompt

    def render(self, job: Job, caption: Caption) -> str:
        """Return what a run would write into a clip's file for a caption, without blanks around it."""
        record = record_of(replace(job, result=caption), self._spec, self._profile, FileContent(None, None))
        return (self._names.form.document([record]) or "").strip()

    def read(self) -> Iterator[ReviewedClip]:
        """Yield all clips with their files as they are now."""
        known, find = KnownFiles(self._marks), self._finder()
        for job in self.jobs:
            yield self._read(job, known, self._journals(find(job)))

    def _finder(self) -> JournalFinder:
        return JournalFinder(self._names, read=self._marks)

    def _read(self, job: Job, known: KnownFiles, journal: Journal) -> ReviewedClip:
        file = self._names.path(job)
        content, text, trouble = b"", None, ""
        try:
            content = _content(file)
            text = decode_text(content).strip()
        except UnicodeDecodeError:
            trouble = f"{file}: is not UTF-8 text"
        except UsageError as error:
            trouble = error.message
        found, mark = known.state(file), journal.index.marks.latest(file)
        version = hashlib.sha256(content).hexdigest() if content else ""
        parts = {} if mark is None or mark.settings is None else journal.index.parts(clip_id(job), mark.settings)
        entries = in_order(parts)
        state: ReviewState = "missing" if found == "free" else found
        earlier = [one.sha256 for one in journal.index.marks.of(file) if one is not mark]
        if found == "written" and (version in earlier or not all(_is_of(entry, job) for entry in entries)):
            state = "superseded"
        record = None
        try:
            with checking_records("review"):
                record = _record_of_file(entries)
        except UsageError as error:
            trouble = trouble or error.message
        return ReviewedClip(job, file, state, text, version, trouble, record)

    def save(self, job: Job, text: str, version: str) -> ReviewedClip:
        """Write a text of a person into a clip's file and return that; no later run overwrites it unasked.

        Args:
            job: one of the clips.
            text: the caption; blanks around it are dropped.
            version: that of the file as the person saw it.

        Raises:
            ChangedOnDiskError: the file is no longer as it was seen.
            UsageError: a run is writing files beside it, it is no text, or the new text is too long to be shown again.
            OutputError: it cannot be written.
        """
        file, text = self._names.path(job), text.strip()
        if len(encode_line(text)) >= LONGEST_PROMPT:
            raise UsageError(f"{file}: a caption may have at most {LONGEST_PROMPT >> 20} MiB")
        with self._saving, self._no_run(job):
            known, journal = KnownFiles(self._marks), self._journals(self._finder()(job))
            now = self._read(job, known, journal)
            if now.text is None:
                raise UsageError(f"{now.trouble}, and was not replaced")
            if file.is_symlink():
                raise UsageError(f"{file}: is a link, and was not replaced", hint="edit what it points to")
            if now.version != version:
                raise ChangedOnDiskError(now)
            make_folder(file.parent)
            for ending in _ENDINGS:
                write_whole(file, text + ending)
                if known.state(file) in ("edited", "foreign"):
                    break
            return self._read(job, known, journal)

    @contextmanager
    def _no_run(self, job: Job) -> Iterator[None]:
        """Lock the journals of a clip's folder: a run that writes a file meanwhile would not see it edited."""
        own = self._finder()(job)
        make_folder(own.parent)
        with ExitStack() as stack:
            for path in sorted({own, *own.parent.glob(".vidspec*.jsonl")}):
                stack.callback(lock_file(Path(os.path.realpath(path.parent), path.name), path).release)
            yield


def review_rows(files: CaptionFiles, source: Callable[[int, Job], str]) -> list[ReviewRow]:
    """Return the clips as the page shows them; ``source`` gives the address of a video."""
    return [
        ReviewRow(
            number,
            one_line(clip.job.path),
            one_line(str(clip.file)),
            clip.state,
            clip.text,
            clip.version,
            source(number, clip.job),
            files.prompt(clip.job),
            one_line(clip.trouble),
            clip.record,
            clip.listed,
        )
        for number, clip in enumerate(files.read(), 1)
    ]


def _record_of_file(entries: Sequence[JournalEntry]) -> RecordDict | None:
    """Return the first record of a file, with the other texts of all its segments; None if there is none."""
    records = [entry.record() for entry in entries]
    if not records:
        return None
    originals = [one["original"]["text"] for one in records if one.get("original")]
    joined = {"original": {**(records[0].get("original") or {}), "text": "\n".join(originals)}} if originals else {}
    return {**records[0], **joined, "summary": records[-1].get("summary")}


def _content(file: Path) -> bytes:
    """Return the bytes of a caption file; none if there is no file."""
    return read_whole(file, LONGEST_PROMPT, str(file)) if os.path.lexists(file) else b""


def _is_of(entry: JournalEntry, job: Job) -> bool:
    """Return True if a record is of the clip's present content; a hash is computed only where times differ."""
    known = entry.content
    return known.same(content_of(job.path)) or (
        known.sha256 is not None and known.same(content_of(job.path, checksum=True))
    )
