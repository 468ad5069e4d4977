"""One file per shard, in a folder or below a URL: written when all clips of the shard are done.

Until then the records of a shard are in a journal. A finished part is complete, and its shard is not opened again.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from vidspec.errors import UsageError, option
from vidspec.events.record import RecordDict
from vidspec.files import NamedPath, back_up
from vidspec.runs.formats.base import PartFormat, PartSummary
from vidspec.runs.job import Job
from vidspec.runs.renderers import OUTPUT, Renderer, failing_one_clip, make_folder
from vidspec.runs.store.journal import hidden_journal
from vidspec.runs.store.records import clip_id
from vidspec.runs.stores import back_up_url, is_url, join_url, list_names, open_url, retry, write_url

if TYPE_CHECKING:
    from vidspec.runs.run_captions import RunCaptions

T = TypeVar("T")


class PartFiles(Renderer):
    """One part per shard; shared by the thread that plans shards and the one that writes records.

    Args:
        folder: folder of the parts, or its URL.
        shards: shards of the run.
        form: format of the parts.
        retry: treat parts with failed clips as unfinished.

    Attributes:
        finished: summaries of the finished parts, by shard.
    """

    def __init__(self, folder: str, shards: Sequence[Job], form: PartFormat, *, retry: bool = False) -> None:
        self.folder, self.form, self._retry = folder, form, retry
        self._names = {shard.path: self.name(shard.path) for shard in shards}
        self._lock = threading.RLock()
        self._clips: dict[str, list[str]] = {}  # by shard, in its order
        self._clips_left: dict[str, set[str]] = {}  # by shard, clips that are not done
        self._notes: list[str] = []
        self.finished: dict[str, PartSummary] = {}

    def open(self, captions: RunCaptions) -> None:
        """Join a run, and read the summaries of earlier parts.

        Raises:
            UsageError: two shards would share a part, or one would replace a shard.
        """
        super().open(captions)
        folder = self.folder
        names = self._names
        if len(set(names.values())) < len(names):
            raise UsageError("two shards of one name would share a part", hint="caption them into folders of their own")
        if set(map(_absolute, names)) & set(map(_absolute, names.values())):
            raise UsageError(
                f"{option('output_dir', folder)}: captions would replace their shards", hint="name another folder"
            )
        if not is_url(folder):
            if not captions.read_only:
                make_folder(Path(folder))
            for link in filter(os.path.islink, names.values()):
                raise UsageError(f"{link}: is a link", hint="remove it, or name another folder")
        existing = list_names(folder)
        earlier_names = {shard: name for shard, name in names.items() if posixpath.basename(name) in existing}
        if captions.overwrite:
            for old, name in earlier_names.items() if not captions.read_only else ():
                self._journal_of(old).unlink(missing_ok=True)
                if not is_url(name):
                    back_up(Path(name))
            earlier_names = {}
        self._earlier = {shard: self._read_summary(name) for shard, name in earlier_names.items()}
        self.finished = {
            shard: part
            for shard, part in self._earlier.items()
            if not self._journal_of(shard).exists() and not (self._retry and part.failed)
        }

    def outputs(self, jobs: Iterable[Job]) -> Iterator[NamedPath]:
        return ((OUTPUT, name) for name in sorted({*self._names.values()}) if not is_url(name))

    def name(self, shard: str) -> str:
        """Return the path or URL of a shard's part."""
        return join_url(self.folder, f"{posixpath.splitext(posixpath.basename(shard))[0]}{self.form.suffix}")

    def finished_part(self, shard: Job, settings: str) -> PartSummary | None:
        """Return the summary of a finished part; None if it is unfinished or not there.

        Raises:
            UsageError: it was made with other settings.
        """
        part = self.finished.get(shard.path)
        if part is not None and set(part.settings) - {settings}:
            message = f"{self.name(shard.path)}: was made with other settings"
            raise UsageError(message, hint=f"give {option('overwrite')}, or another {option('output_dir')}")
        return part

    def begin(self, shard: Job) -> None:
        """Open the journal of a shard and copy the captions of an earlier part to it.

        A part whose captions differ from its journal was edited after a run was killed: they count, and it is kept.

        Raises:
            UsageError: another run has the journal open.
            OutputError: it cannot be written.
        """
        journal = self.captions.journals.of(shard)
        name = self.name(shard.path)
        earlier = self._read(name, lambda file: [*self.form.read_records(file)]) if shard.path in self._earlier else []
        captioned = ((None, one) for one in earlier if one["error"] is None)
        if (
            journal.add_missing(captioned, edits=True)
            and (moved := back_up_url(name) if is_url(name) else back_up(Path(name))) is not None
        ):
            self._notes.append(f"{name}: was edited, and is now {moved}")

    def set_clips(self, shard: Job, jobs: Iterable[Job], unfinished: Iterable[Job], settings: str) -> None:
        """Set the clips of an opened shard and its unfinished ones; write its part at once if there are none.

        Raises:
            OutputError: the part cannot be written.
        """
        with self._lock:
            self._clips[shard.path], self._clips_left[shard.path] = [*map(clip_id, jobs)], {*map(clip_id, unfinished)}
            if not self._clips_left[shard.path]:
                self._finish(shard, settings)

    def add(self, job: Job, record: RecordDict) -> None:
        with self._lock:
            shard, about, clip = job.shard or "", record["job"], clip_id(job)
            unfinished = self._clips_left[shard]
            if len(self.captions.parts(job, about["settings"])) >= about.get("segments", 1):
                unfinished.discard(clip)
            if not unfinished:
                self._finish(job, about["settings"])

    def finish(self, *, complete: bool) -> list[str]:
        return self._notes

    def _finish(self, job: Job, settings: str) -> None:
        """Write the part of a shard whose clips are all done, and remove its journal."""
        shard = job.shard or job.path
        del self._clips_left[shard]
        journal = self.captions.journals.of(job)
        with failing_one_clip(self.name(shard)):
            journal.compact(self._clips.pop(shard))
            content = self.form.content(one for one in journal.records() if one["job"]["settings"] == settings)
            write_url(self.name(shard), content)
        self.captions.journals.end(job)

    def _read_summary(self, name: str) -> PartSummary:
        """Return the summary of a finished part.

        Raises:
            UsageError: the file is none.
            VideoError: it cannot be read.
        """
        summary = self._read(name, self.form.read_summary)
        if summary is None:
            raise UsageError(
                f"{name}: exists already, and holds no captions", hint=f"name another {option('output_dir')}"
            )
        return summary

    def _read(self, name: str, read: Callable[[BinaryIO], T]) -> T:
        """Return what is read from a finished part.

        Raises:
            VideoError: it cannot be read.
        """

        def read_once() -> T:
            with open_url(name) as file:
                return read(file)

        return retry(name, read_once)

    def journal_path(self, job: Job | None) -> Path:
        """Return the path of the journal of a clip, or of a shard itself."""
        assert job is not None
        return self._journal_of(job.shard or job.path)

    def _journal_of(self, shard: str) -> Path:
        """Return a journal's path: next to its part, or in the user's state folder if the part is below a URL."""
        name = self.name(shard)
        if not is_url(name):
            return hidden_journal(Path(name))
        import platformdirs

        digest = hashlib.sha256(self.folder.encode()).hexdigest()[:16]
        return Path(platformdirs.user_state_dir("vidspec"), "parts", digest, f"{posixpath.basename(name)}.jsonl")


def _absolute(name: str) -> str:
    return name if is_url(name) else os.path.abspath(name)
