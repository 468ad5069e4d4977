"""Caption files as they are on disk, for review: read with their states, and replaced by texts of a person."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from vidspec.bounds import LONGEST_PROMPT
from vidspec.config.profiles import override, parse
from vidspec.config.run_spec import RunSpec
from vidspec.config.schema import Profile
from vidspec.display.pages.review import ReviewRow
from vidspec.errors import OutputError, UsageError, VidspecError, option
from vidspec.escaping import one_line
from vidspec.events.record import RecordDict, checking_records
from vidspec.files import decode_text, encode_line, read_whole, write_whole
from vidspec.runs.clip_files import ClipFiles
from vidspec.runs.job import Job, prompt_of, questions_of
from vidspec.runs.planning import RunPlan
from vidspec.runs.renderers import in_order, make_folder
from vidspec.runs.run_settings import profile_keys
from vidspec.runs.sources.base import is_shard
from vidspec.runs.store.caption_set import CaptionState, caption_state
from vidspec.runs.store.journal import lock_file
from vidspec.runs.store.journal_lines import CaptionRun, JournalEntry
from vidspec.runs.store.known_journals import KnownJournals, folder_journals
from vidspec.runs.store.records import FileContent, clip_id, record_of
from vidspec.runs.store.sidecars import JournalFinder, SidecarNames
from vidspec.runs.stores import is_url


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
        run: how its caption was made, of a clip without one the last run of its folder; None if that is not known.
    """

    job: Job
    file: Path
    state: CaptionState
    text: str | None
    version: str
    trouble: str = ""
    record: RecordDict | None = None
    run: CaptionRun | None = None

    @property
    def listed(self) -> str:
        """Caption in the list that names the clip, as a JSONL of records, if its file is missing; empty if none."""
        caption = self.job.columns.get("caption") if self.state == "missing" else None
        return caption.strip() if isinstance(caption, str) else ""


class RepeatedRun(NamedTuple):
    """One clip of a run, captioned again: the job, spec and profile, and the prompt as a person reads it."""

    job: Job
    spec: RunSpec
    profile: Profile
    prompt: str

    @property
    def about(self) -> str:
        """The models and texts of the run, for the page."""
        models, spec = self.profile.models, self.spec
        named = models.pair or " + ".join(filter(None, (models.target, models.draft))) or "the built-in models"
        texts = (f"{name} {text!r}" for name in ("template", "rewrite", "segment") if (text := getattr(spec, name)))
        return one_line(", ".join([named, f"profile {self.profile.name}", *texts]))


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
    files = [one for one in planned.renderers if isinstance(one, ClipFiles) and not one.of_segments]
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
        typed: the options that the user gave, which hold for other captions too; the rest is as in the run that wrote
            a caption.

    Raises:
        UsageError: see :func:`check_reviewable`.
    """

    def __init__(self, planned: RunPlan, typed: RunSpec | None = None) -> None:
        self._names = check_reviewable(planned)
        self.jobs: Sequence[Job] = planned.entries
        self._planned = planned.spec, planned.profile
        self._keys = {} if typed is None else profile_keys(typed)
        self._keeps_profiles = typed is None or typed.profile is None
        self._runs: dict[str, tuple[RunSpec, Profile]] = {}  # by digest of their description
        self._saved: dict[int, tuple[str, bytes | None]] = {}  # version, and bytes before, by place in jobs
        self._saving = threading.Lock()
        self._known = KnownJournals()

    def repeated(self, clip: ReviewedClip, prompt: str | None = None) -> RepeatedRun:
        """Return the run that captions a clip again: that of its caption, with another prompt if one is given.

        A clip without a caption is captioned as the last run of its folder did.
        """
        about = {} if clip.record is None else clip.record.get("job") or {}
        spec, profile = self._planned if clip.run is None else self._run(clip.run)
        job = replace(clip.job, columns=about.get("columns") or clip.job.columns, existing=about.get("existing"))
        own = "generate.prompt" in self._keys or questions_of(job, spec) is not None
        shown = prompt_of(job, spec, profile) if own else about.get("prompt") or prompt_of(job, spec, profile)
        asked = shown if prompt is None else prompt
        if asked != prompt_of(job, spec, profile):
            job = replace(job, prompt=asked)
        return RepeatedRun(job, spec, profile, asked)

    def _run(self, run: CaptionRun) -> tuple[RunSpec, Profile]:
        """Return a recorded run with the options that the user gave; the planned one if it cannot be read any more."""
        if run.digest not in self._runs:
            try:
                spec = RunSpec.model_validate({**run.spec, "baseline": False, "verify": False, "batch": 1})
                profile = override(parse(run.profile), self._keys) if self._keeps_profiles else self._planned[1]
                if "models.target" in self._keys or "models.pair" in self._keys:
                    spec = spec.model_copy(update={"overrides": {**spec.overrides, **self._keys}})
            except (UsageError, ValidationError):
                spec, profile = self._planned
            self._runs[run.digest] = spec, profile
        return self._runs[run.digest]

    def render(self, repeated: RepeatedRun, captioned: Sequence[Job]) -> str:
        """Return what the run would write into a clip's file for the captions of its parts, without blanks around it.

        Raises:
            VidspecError: a part has no caption.
        """
        for one in captioned:
            if one.error is not None:
                raise VidspecError.of(one.error)
        nothing = FileContent(None, None)
        records = [record_of(one, repeated.spec, repeated.profile, nothing) for one in captioned]
        records.sort(key=lambda one: one["job"].get("segment") or 0)
        return (self._names.form.document(records) or "").strip()

    def read(self) -> Iterator[ReviewedClip]:
        """Yield all clips with their files as they are now."""
        self._known.refresh()
        find = JournalFinder(self._names, self._known)
        return (self._read(job, find) for job in self.jobs)

    def clip(self, number: int) -> ReviewedClip:
        """Return a clip with its file as it is now; ``number`` counts from 0."""
        self._known.refresh()
        return self._read(self.jobs[number], JournalFinder(self._names, self._known))

    def _read(self, job: Job, find: JournalFinder) -> ReviewedClip:
        file = self._names.path(job)
        content, text, trouble = b"", None, ""
        try:
            content = _content(file)
            text = decode_text(content).strip()
        except UnicodeDecodeError:
            trouble = f"{file}: is not UTF-8 text"
        except UsageError as error:
            trouble = error.message
        marks, nearest = self._known.marks(file), self._known.read(find(job))
        run = nearest.index.runs.latest if nearest is not None else None
        entries: list[JournalEntry] = []
        for journal, mark in marks[-1:]:
            if mark.settings is not None:
                entries = in_order(journal.index.parts(clip_id(job), mark.settings))
                run = journal.index.runs.of(mark.settings)
        state = caption_state(file, self._known.state(file), [mark for _, mark in marks], entries)
        record = None
        try:
            with checking_records("review"):
                record = _record_of_file(entries)
        except UsageError as error:
            trouble = trouble or error.message
        version = hashlib.sha256(content).hexdigest() if content else ""
        return ReviewedClip(job, file, state, text, version, trouble, record, run)

    def save(self, number: int, text: str, version: str) -> ReviewedClip:
        """Write a text of a person into a clip's file and return that; no later run overwrites it unasked.

        Args:
            number: place of the clip, from 0.
            text: the caption; blanks around it are dropped.
            version: that of the file as the person saw it.

        Raises:
            ChangedOnDiskError: the file is no longer as it was seen.
            UsageError: a run is writing files beside it, it is no text, or the new text is too long to be shown again.
            OutputError: it cannot be written.
        """
        job, text = self.jobs[number], text.strip()
        file = self._names.path(job)
        if len(encode_line(text)) >= LONGEST_PROMPT:
            raise UsageError(f"{file}: a caption may have at most {LONGEST_PROMPT >> 20} MiB")
        with self._changing(number, version):
            before = _content(file) if file.exists() else None
            make_folder(file.parent)
            write_whole(file, self._known.text_by_hand(file, text))
            now = self.clip(number)
            self._saved[number] = now.version, before
            return now

    def undo(self, number: int, version: str) -> ReviewedClip:
        """Put back the bytes that the last save of this process replaced; raises as :meth:`save` does."""
        file = self._names.path(self.jobs[number])
        with self._changing(number, version):
            saved, before = self._saved.get(number, ("", None))
            if saved != version or not version:
                raise UsageError(f"{file}: there is no save to undo")
            if before is None:
                file.unlink()
            else:
                write_whole(file, before)
            del self._saved[number]
            return self.clip(number)

    @contextmanager
    def _changing(self, number: int, version: str) -> Iterator[None]:
        """Lock a clip's file for a change of what a person saw as ``version``, and the journals of its folder.

        A run that writes the file meanwhile would not see it edited.
        """
        own = JournalFinder(self._names, self._known)(self.jobs[number])
        make_folder(own.parent)
        with self._saving, ExitStack() as stack:
            for path in sorted({own, *folder_journals(own.parent)}):
                stack.callback(lock_file(Path(os.path.realpath(path.parent), path.name), path).release)
            now = self.clip(number)
            if now.text is None:
                raise UsageError(f"{now.trouble}, and was not replaced")
            if now.file.is_symlink():
                raise UsageError(f"{now.file}: is a link, and was not replaced", hint="edit what it points to")
            if now.version != version:
                raise ChangedOnDiskError(now)
            yield


def review_rows(files: CaptionFiles, source: Callable[[int, Job], str]) -> list[ReviewRow]:
    """Return the clips as the page shows them; ``source`` gives the address of a video."""
    rows = []
    for number, clip in enumerate(files.read(), 1):
        again = files.repeated(clip)
        rows.append(
            ReviewRow(
                number,
                one_line(clip.job.path),
                one_line(str(clip.file)),
                clip.state,
                clip.text,
                clip.version,
                source(number, clip.job),
                again.prompt,
                one_line(clip.trouble),
                clip.record,
                clip.listed,
                again.about,
            )
        )
    return rows


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
