"""The store of a run: what is known of its captions, what it adds, and any number of renderers that show them.

There is one journal, or one for each folder of clips or each shard; journals alone decide what is done.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from vidspec.events.record import RecordDict
from vidspec.runs.clip_files import ClipFiles
from vidspec.runs.job import Job
from vidspec.runs.part_files import PartFiles
from vidspec.runs.renderers import PendingFile, Renderer
from vidspec.runs.run_captions import RunCaptions, collecting
from vidspec.runs.run_file import RunFile
from vidspec.runs.store.journal import lock_file
from vidspec.runs.store.journal_lines import CaptionRun
from vidspec.runs.writers import Stream


class RunStore:
    """Keeps the records of a run and of earlier ones, and hands each to its renderers.

    Args:
        renderers: in the order in which they get a record: files for each clip last, as one of these may fail alone.
        jobs, label, overwrite, read_only, run: see :class:`~vidspec.runs.run_captions.RunCaptions`.

    Attributes:
        captions: what is known of the captions.
        part_files: the file for each shard, if that is what the run writes; else None.
        only_stream: the stream of a run that shows its records nowhere else; else None.

    Raises:
        UsageError: a file is there that may not be replaced, another run is writing it, or no journal can be written.
    """

    def __init__(
        self,
        renderers: Sequence[Renderer] = (),
        jobs: Iterable[Job] = (),
        *,
        label: str = "",
        overwrite: bool = False,
        read_only: bool = False,
        run: CaptionRun | None = None,
    ) -> None:
        self.renderers, self._shown = tuple(renderers), () if read_only else tuple(renderers)
        self.part_files = next((one for one in self.renderers if isinstance(one, PartFiles)), None)
        streams = [one for one in self.renderers if isinstance(one, Stream)]
        self.only_stream = streams[0] if len(self.renderers) == len(streams) == 1 else None
        clips = tuple(jobs)
        self.captions = RunCaptions(
            self.renderers, clips, label=label, overwrite=overwrite, read_only=read_only, run=run
        )
        with contextlib.ExitStack() as undo:
            for path in [
                one.path for one in self._shown if isinstance(one, RunFile) and not self.captions.is_journal(one.path)
            ]:
                undo.callback(lock_file(Path(os.path.realpath(path)), path).release)
            undo.callback(self.captions.journals.close, [])
            self.captions.journals.open(clips)
            for one in self.renderers:
                one.open(self.captions)
            self._closing = undo.pop_all()

    @property
    def kept_hint(self) -> str:
        """The option that captions the clips whose files are kept."""
        if any(isinstance(one, ClipFiles) and not one.of_segments for one in self.renderers):
            return "--existing replace replaces those that no run wrote"
        return "--overwrite captions them for this file"

    def check(self, job: Job) -> None:
        """Check before a clip is captioned that its record can be written.

        Raises:
            OutputError: of kind :data:`ONE_CLIP`.
        """
        if self.captions.journals.kept:
            self.captions.journals.of(job)
        for one in self._shown:
            one.check(job)

    def leaves(self, job: Job) -> bool:
        """Return True if all files of a clip exist and must not be replaced, so that captioning it is useless."""
        return bool(self.renderers) and all([one.leaves(job) for one in self.renderers])

    def file_changes(self, job: Job, settings: str, *, captioned: bool) -> dict[Path, str]:
        """Return the effect of a run on existing files, see :meth:`Renderer.file_changes`."""
        changes: dict[Path, str] = {}
        for one in self.renderers:
            changes |= one.file_changes(job, settings, captioned=captioned)
        return changes

    def keeps(self, job: Job) -> bool:
        """Return True if records of this job are kept at all; a shard that cannot be read is tried again."""
        return job.shard is not None or self.part_files is None

    def add(self, job: Job, record: RecordDict) -> PendingFile | None:
        """Keep a record and show it; it is durable on return. Return a file of it that is shown later.

        Raises:
            OutputError: it could not be written; of kind :data:`ONE_CLIP` if those of other clips still can.
        """
        if not self._shown or not self.keeps(job):
            return None
        for one in self._shown:
            one.prepare(job, record)
        self.captions.add(job, record)
        pending = [one.add(job, record) for one in self._shown]
        return next(filter(None, pending), None)

    def restore(self, job: Job, settings: str) -> None:
        """Show a clip that needs no captioning, where it is missing."""
        for one in self._shown:
            one.restore(job, settings)

    def close(self, jobs: Sequence[Job], *, complete: bool) -> list[str]:
        """Finish all files after the last record; return notes for the user."""
        failures: list[Exception] = []
        with self._closing:
            for one in self.renderers:
                with collecting(failures):
                    one.settle()
            notes = self.captions.journals.compact(jobs, failures)
            for one in self.renderers:
                with collecting(failures):  # the others must be finished all the same
                    notes += one.finish(complete=complete)
            notes += self.captions.journals.close(failures, complete=complete)
        if failures:
            raise failures[0]
        return notes
