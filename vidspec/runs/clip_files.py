"""One file per clip and format, rendered from journals. Files edited or written by others are kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from vidspec.config.run_spec import ExistingFiles
from vidspec.errors import OutputError
from vidspec.events.record import RecordDict
from vidspec.events.tally import counted
from vidspec.files import NamedPath, back_up, backup_of, encode_line, permissions, write_whole
from vidspec.runs.job import Job
from vidspec.runs.renderers import ONE_CLIP, PendingFile, Renderer, failing_one_clip, in_order, make_folder
from vidspec.runs.store.journal_lines import MarkedCaption
from vidspec.runs.store.records import clip_id
from vidspec.runs.store.sidecars import SidecarNames

#: What becomes of a file: its state if it is kept; ``new`` if it is missing or empty; removed and ``replaced``; kept
#: ``aside`` as ``FILE~``; that as it shows captions of other settings; or late, once its clip's record has its text.
_Fate: TypeAlias = Literal["edited", "foreign", "new", "replaced", "aside", "aside, of other settings", "aside, late"]


class ClipFiles(Renderer):
    """One file per clip and format, written when all parts of the clip are captioned.

    Args:
        names: names of each clip's files, which share a folder.
        existing: treatment of foreign files: ``skip`` keeps them, ``replace`` and ``use`` write the caption and keep
            a backup; ``use`` also hands their text to prompts and templates. A run that starts over replaces edited
            and foreign files too, with a backup as ``NAME~``.
    """

    of_segments: ClassVar[bool] = False

    def __init__(self, names: Sequence[SidecarNames], existing: ExistingFiles = "skip") -> None:
        self.names, self._existing = tuple(names), existing
        self._kept: dict[Path, tuple[_Fate, str]] = {}  # files that were not replaced, with their clips
        self._permissions: dict[Path, int] = {}  # of files that are replaced
        self._backups: list[Path] = []
        self._replaced: list[Path] = []  # files with captions by other options, which this run replaced

    @property
    def place(self) -> str:
        return f"a file for each clip ({', '.join(one.form.name for one in self.names)})"

    def caption_files(self, job: Job) -> dict[Path, str]:
        if (job.segment is not None) != self.of_segments:
            return {}
        marks = self.captions.journals.of(job).index.marks
        files = {names.path(job): names.form for names in self.names}
        wrote = {path: form for path, form in files.items() if form.holds == "text" or marks.of(path)}
        return {path: form.name for path, form in wrote.items() if form.holds is not None}

    def leaves(self, job: Job) -> bool:
        fates = {path: self._fate(job, path) for path in (names.path(job) for names in self.names)}
        leaves = {*fates.values()} <= {"edited", "foreign"}
        self._kept |= {path: (fate, job.path) for path, fate in fates.items() if leaves}
        return leaves

    def _fate(self, job: Job, path: Path, settings: str | None = None) -> _Fate:
        """Return what a caption by these settings does to a file."""
        state, overwrite = self.captions.state(job, path), self.captions.overwrite
        if state == "free":
            return "new"
        if state == "written":
            mark = None if settings is None or overwrite else self.captions.journals.of(job).index.marks.latest(path)
            return "replaced" if mark is None or mark.settings == settings else "aside, of other settings"
        if state == "foreign" and self._existing != "skip":
            return "aside, late"
        return "aside" if overwrite else state

    def file_changes(self, job: Job, settings: str, *, captioned: bool) -> Mapping[Path, str]:
        changes = {}
        for path in (names.path(job) for names in (self.names if captioned else self._outdated(job, settings))):
            fate = self._fate(job, path, settings)
            if fate in ("edited", "foreign"):
                changes[path] = f"{fate}, kept"
            elif fate != "new":
                changes[path] = "replaced" if fate == "replaced" else f"replaced, kept as {backup_of(path)}"
        return changes

    def _outdated(self, job: Job, settings: str) -> Iterator[SidecarNames]:
        """Yield the clip's files that are missing or that show records of other settings."""
        for names in self.names:
            path = names.path(job)
            mark = self.captions.journals.of(job).index.marks.latest(path)
            of_others = mark is not None and (mark.settings, mark.format) != (settings, names.form.name)
            late = self._existing != "skip"  # only then is the file read
            if of_others or not os.path.exists(path) or (late and self._fate(job, path) == "aside, late"):
                yield names

    def outputs(self, jobs: Iterable[Job]) -> Iterator[NamedPath]:
        return (("the file of a clip", names.path(job)) for names in self.names for job in jobs)

    def check(self, job: Job) -> None:
        for path in (names.path(job) for names in self.names):
            folder = next(one for one in path.parents if os.path.exists(one))  # others are made with their first file
            if not (folder.is_dir() and os.access(folder, os.W_OK)):
                message = f"{path}: cannot be written: {folder} takes no files"
                raise OutputError(message, hint="run the same command again once it does", kind=ONE_CLIP)

    def prepare(self, job: Job, record: RecordDict) -> None:
        if record["caption"] is not None or record["job"].get("segment") is not None:
            # The earlier file is removed before the record is added: a file must never show other than its record.
            for names in self.names:
                self._clear(job, names.path(job), record["job"]["settings"])

    def add(self, job: Job, record: RecordDict) -> PendingFile | None:
        self._write(job, record["job"]["settings"], self.names)
        return None

    def restore(self, job: Job, settings: str) -> None:
        outdated = tuple(self._outdated(job, settings))
        for names in outdated:
            self._clear(job, names.path(job), settings)
        self._write(job, settings, outdated)

    def _clear(self, job: Job, path: Path, settings: str | None = None) -> None:
        """Remove a file that a run wrote, or keep it aside if it shows captions by other than these settings.

        Any other file stays, or is kept aside if the run replaces it.
        """
        fate = self._fate(job, path, settings)
        with failing_one_clip(path):
            if fate in ("edited", "foreign"):
                self._kept[path] = fate, job.path
            elif fate == "replaced":
                self._permissions[path] = permissions(path)
                path.unlink()
            elif fate in ("aside", "aside, of other settings"):
                self._replaced += [path] * (fate != "aside")
                self._back_up(path)

    def _back_up(self, path: Path) -> None:
        if path.is_file():
            self._permissions[path] = permissions(path)
        if moved := back_up(path):
            self._backups.append(moved)

    def _write(self, job: Job, settings: str, several: Sequence[SidecarNames]) -> None:
        """Write missing files once all parts of the clip are recorded."""
        wanted = [names for names in several if names.path(job) not in self._kept]
        records = self._records(job, settings) if wanted else []
        for names in wanted if records else ():
            content, path = names.form.document(records), names.path(job)
            if content is None:
                continue
            data = encode_line(content)
            if self._fate(job, path) == "aside, late":
                with failing_one_clip(path):
                    self._back_up(path)
            self._mark(job, path, len(data), hashlib.sha256(data).hexdigest(), settings, names.form.name)
            with failing_one_clip(path):
                make_folder(path.parent)
                write_whole(path, data, mode=self._permissions.get(path))

    def _records(self, job: Job, settings: str) -> list[RecordDict]:
        """Return the records in a clip's files; none while some are missing."""
        entries = in_order(self.captions.parts(job, settings))
        return [] if not entries or len(entries) < (entries[0].segments or 1) else [one.record() for one in entries]

    def _mark(self, job: Job, path: Path, size: int, sha256: str, settings: str, form: str) -> None:
        """Mark a file that is about to be written."""
        caption: MarkedCaption = {"settings": settings, "format": form, "clip": clip_id(job), "segment": job.segment}
        self.captions.mark(job, path, size, sha256, **caption)

    def finish(self, *, complete: bool) -> list[str]:
        notes = []
        links = [path for path in self._kept if path.is_symlink()]
        edited = [path for path, (state, _) in self._kept.items() if state == "edited"]
        foreign = [path for path in self._kept if path not in (*links, *edited)]
        for left, one, several in (
            (edited, "1 edited file was", "edited files were"),
            (foreign, "1 file that no run wrote was", "files that no run wrote were"),
            (links, "1 file that is a link was", "files that are links were"),
        ):
            if left:
                notes.append(f"{one if len(left) == 1 else f'{len(left)} {several}'} kept: {_shorten(left)}")
            if left and left is edited:
                notes[-1] += "; move one away to have it written again"
        if clips := {clip for state, clip in self._kept.values() if state == "foreign"}:
            them = "it" if len(foreign) + len(links) == 1 else "them"
            notes[-1] += f"; --existing replace replaces {them} ({counted(len(clips), 'clip')}), keeping FILE~"
        if self._replaced:
            count = counted(len(self._replaced), "file")
            notes.append(
                f"{count} with captions by other options replaced: {_shorten(self._replaced)}; the command that wrote "
                f"{'it' if len(self._replaced) == 1 else 'them'} does so again, without captioning"
            )
        if self._backups:
            notes.append(f"files that were there before are kept as {_shorten(self._backups)}")
        return notes


def _shorten(paths: Sequence[Path]) -> str:
    return f"{paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}"
