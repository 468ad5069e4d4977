"""One file per clip and format, rendered from journals. Files edited or written by others are kept."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vidspec.bounds import LONGEST_PROMPT
from vidspec.config.run_spec import ExistingFiles
from vidspec.errors import OutputError, UsageError
from vidspec.events.record import RecordDict
from vidspec.events.tally import counted
from vidspec.files import back_up, backup_of, encode_line, permissions, read_text, write_whole
from vidspec.runs.job import Job
from vidspec.runs.renderers import ONE_CLIP, PendingFile, Renderer, in_order, make_folder
from vidspec.runs.store.file_states import FileMarks, FileState, MarkedCaption, file_state, folder_journals
from vidspec.runs.store.journal import Journal, unwritable_error
from vidspec.runs.store.records import clip_id
from vidspec.runs.store.sidecars import SidecarNames

__all__ = ["ClipFiles"]


class ClipFiles(Renderer):
    """One file per clip and format, written when all parts of the clip are captioned.

    Args:
        names: names of each clip's files, which share a folder.
        existing: treatment of foreign files: ``skip`` keeps them, ``replace`` and ``use`` write the caption and keep
            a backup; ``use`` also hands their text to prompts and templates. A run that starts over replaces edited
            and foreign files too, with a backup as ``NAME~``.
    """

    def __init__(self, names: Sequence[SidecarNames], existing: ExistingFiles = "skip") -> None:
        self.names, self._existing = tuple(names), existing
        self._other_journals: dict[Path, list[Journal]] = {}  # those of other shards, by journal
        self._unreplaced: dict[Path, FileState] = {}  # files that were not replaced
        self._unreplaced_clips: dict[FileState, set[str]] = defaultdict(set)
        self._permissions: dict[Path, int] = {}  # of files that are replaced
        self._backups: list[Path] = []
        self._replaced: list[Path] = []  # files with captions by other options, which this run replaced

    @property
    def place(self) -> str:
        return f"a file for each clip ({', '.join(one.form.name for one in self.names)})"

    def state(self, job: Job, path: Path) -> FileState:
        """Return the state of one of a clip's files."""
        return file_state(path, (journal.index.marks for journal in self._journals_of(job)))

    def _journals_of(self, job: Job) -> Iterator[Journal]:
        """Yield the journal of a clip, and those in its folder of runs with other shards or none."""
        yield self.store.journals.of(job)
        own = self.store.journals.path(job)
        if own not in self._other_journals:
            others = [path for path in folder_journals(own.parent) if path.name != own.name and not path.is_symlink()]
            self._other_journals[own] = [Journal(path, read_only=True) for path in others]
        yield from self._other_journals[own]

    @property
    def other_marks(self) -> list[FileMarks]:
        """Marks of the journals of other runs in the folders of clips that were asked about."""
        return [journal.index.marks for several in self._other_journals.values() for journal in several]

    def states(self, job: Job) -> dict[Path, FileState]:
        """Return the state of each of a clip's files."""
        return {path: self.state(job, path) for path in (names.path(job) for names in self.names)}

    def text_paths(self, job: Job) -> list[Path]:
        """Return the clip's files that hold its caption alone."""
        return [names.path(job) for names in self.names if names.form.suffix == ".txt"]

    def leaves(self, job: Job) -> bool:
        states = self.states(job)
        leaves = all(state != "free" and self._is_kept(state) for state in states.values())
        for path, state in states.items() if leaves else ():
            self._leave(job, path, state)
        return leaves

    def _leave(self, job: Job, path: Path, state: FileState) -> None:
        self._unreplaced[path] = state
        self._unreplaced_clips[state].add(job.path)

    def _is_kept(self, state: FileState) -> bool:
        """Return True if a file in this state is not replaced."""
        return not self.store.overwrite and (state == "edited" or (state == "foreign" and self._existing == "skip"))

    def _replaces_foreign(self, job: Job, path: Path) -> bool:
        return self._existing != "skip" and self.state(job, path) == "foreign"

    def existing_text(self, job: Job) -> str | None:
        if self._existing != "use":
            return None
        for names in self.names:
            if names.form.suffix == ".txt" and self.state(job, path := names.path(job)) in ("edited", "foreign"):
                return _read_text(path)
        indexes = (journal.index for journal in self._journals_of(job))
        return next((index.existing[clip_id(job)] for index in indexes if clip_id(job) in index.existing), "")

    def file_changes(self, job: Job, settings: str, *, captioned: bool) -> Mapping[Path, str]:
        several = self.names if captioned else self.outdated(job, settings)
        states = {path: self.state(job, path) for path in (names.path(job) for names in several)}
        return {
            path: f"{state}, kept"
            if self._is_kept(state)
            else "replaced"
            if captioned and state == "written"
            else f"replaced, kept as {backup_of(path)}"
            for path, state in states.items()
            if state != "free"
        }

    def outdated(self, job: Job, settings: str) -> Iterator[SidecarNames]:
        """Yield the clip's files that are missing or that show records of other settings."""
        for names in self.names:
            path = names.path(job)
            mark = self.store.journals.of(job).index.marks.latest(path)
            of_others = mark is not None and (mark.settings, mark.format) != (settings, names.form.name)
            if of_others or not os.path.exists(path) or self._replaces_foreign(job, path):
                yield names

    def check(self, job: Job) -> None:
        for path in (names.path(job) for names in self.names):
            folder = path.parent
            while not os.path.exists(folder):  # made together with its first file
                folder = folder.parent
            if not (folder.is_dir() and os.access(folder, os.W_OK)):
                raise OutputError(
                    f"{path}: cannot be written: {folder} takes no files",
                    hint="run the same command again once it does",
                    kind=ONE_CLIP,
                )

    def prepare(self, job: Job, record: RecordDict) -> None:
        if record["caption"] is not None or record["job"].get("segment") is not None:
            # The earlier file is removed before the record is added: a file must never show other than its record.
            for path in (names.path(job) for names in self.names):
                self._clear(job, path, back_up=self._shows_other(job, path, record["job"]["settings"]))

    def _shows_other(self, job: Job, path: Path, settings: str) -> bool:
        """Return True if a file shows a caption by other options; unless a run starts over it is kept, as ``FILE~``."""
        mark = None if self.store.overwrite else self.store.journals.of(job).index.marks.latest(path)
        other = mark is not None and mark.settings != settings and self.state(job, path) == "written"
        self._replaced += [path] * other
        return other

    def add(self, job: Job, record: RecordDict) -> PendingFile | None:
        self._write(job, record["job"]["settings"], self.names)
        return None

    def restore(self, job: Job, settings: str) -> None:
        outdated = tuple(self.outdated(job, settings))
        for path in (names.path(job) for names in outdated):
            self._clear(job, path, back_up=self._shows_other(job, path, settings))
        self._write(job, settings, outdated)

    def _clear(self, job: Job, path: Path, *, back_up: bool = False) -> None:
        """Remove a file as a run wrote it, or ``back_up`` it too.

        Any other file stays, or is renamed if the run replaces it.
        """
        state = self.state(job, path)
        try:
            if state == "written" and back_up:
                self._back_up(path)
            elif state == "written":
                self._permissions[path] = permissions(path)
                path.unlink()
            elif self._is_kept(state):
                self._leave(job, path, state)
            elif state == "edited" or (state == "foreign" and self._existing == "skip"):
                self._back_up(path)
        except OSError as error:
            raise unwritable_error(path, error, ONE_CLIP) from None

    def _back_up(self, path: Path) -> None:
        if path.is_file():
            self._permissions[path] = permissions(path)
        if moved := back_up(path):
            self._backups.append(moved)

    def _write(self, job: Job, settings: str, several: Sequence[SidecarNames]) -> None:
        """Write missing files once all parts of the clip are recorded."""
        wanted = [names for names in several if names.path(job) not in self._unreplaced]
        records = self._records(job, settings) if wanted else []
        for names in wanted if records else ():
            content, path = names.form.document(records), names.path(job)
            if content is None:
                continue
            data = encode_line(content)
            if self._replaces_foreign(job, path):  # not before its record, which keeps its text
                try:
                    self._back_up(path)
                except OSError as error:
                    raise unwritable_error(path, error, ONE_CLIP) from None
            self._mark(job, path, len(data), hashlib.sha256(data).hexdigest(), settings, names.form.name)
            try:
                make_folder(path.parent)
                write_whole(path, data, mode=self._permissions.get(path))
            except OutputError as error:  # the record is in the journal
                hint = "run the same command again once it can be; nothing is captioned twice"
                raise OutputError(error.message, hint=hint, kind=ONE_CLIP) from None

    def _records(self, job: Job, settings: str) -> list[RecordDict]:
        """Return the records in a clip's files; none while some are missing."""
        entries = in_order(self.store.parts(job, settings))
        return [] if not entries or len(entries) < (entries[0].segments or 1) else [one.record() for one in entries]

    def _mark(self, job: Job, path: Path, size: int, sha256: str, settings: str, form: str) -> None:
        """Mark a file that is about to be written."""
        caption: MarkedCaption = {"settings": settings, "format": form, "clip": clip_id(job), "segment": job.segment}
        with self.store.journals.losing(job):
            self.store.journals.of(job).mark(path, size, sha256, **caption)

    def finish(self, *, complete: bool) -> list[str]:
        notes = []
        edited = [path for path, state in self._unreplaced.items() if state == "edited"]
        links = [path for path in self._unreplaced if path.is_symlink()]
        foreign = [path for path, state in self._unreplaced.items() if state == "foreign" and path not in links]
        for left, one, several in (
            (edited, "1 edited file was", "edited files were"),
            (foreign, "1 file that no run wrote was", "files that no run wrote were"),
            (links, "1 file that is a link was", "files that are links were"),
        ):
            if left:
                notes.append(f"{one if len(left) == 1 else f'{len(left)} {several}'} kept: {_shorten(left)}")
            if left and left is edited:
                notes[-1] += "; move one away to have it written again"
        if clips := len(self._unreplaced_clips["foreign"]):
            them = "it" if len(foreign) + len(links) == 1 else "them"
            notes[-1] += f"; --existing replace replaces {them} ({counted(clips, 'clip')}), keeping FILE~"
        if self._replaced:
            count = counted(len(self._replaced), "file")
            notes.append(
                f"{count} with captions by other options replaced: {_shorten(self._replaced)}; the command that wrote "
                f"{'it' if len(self._replaced) == 1 else 'them'} does so again, without captioning"
            )
        if self._backups:
            notes.append(f"files that were there before are kept as {_shorten(self._backups)}")
        return notes


def _read_text(path: Path) -> str:
    """Return the text of a caption file, without blanks around it."""
    try:
        return read_text(path, LONGEST_PROMPT, str(path)).strip()
    except UsageError as error:
        hint = error.hint or "convert it, or give --existing replace"
        raise OutputError(error.message, hint=hint, kind=ONE_CLIP) from None


def _shorten(paths: Sequence[Path]) -> str:
    return f"{paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}"
