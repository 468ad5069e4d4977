"""Renderers show the records of a run's store: one file, one per clip or shard, or lines of a stream."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vidspec.errors import OutputError, option
from vidspec.events.record import RecordDict
from vidspec.files import NamedPath
from vidspec.runs.job import Job
from vidspec.runs.store.journal import unwritable_error
from vidspec.runs.store.journal_lines import JournalEntry

if TYPE_CHECKING:
    from vidspec.runs.run_captions import RunCaptions

#: Kind of an OutputError that concerns one clip; after any other kind nothing more can be written.
ONE_CLIP = "sidecar"
#: Name of the option that names the output, in :meth:`Renderer.outputs`.
OUTPUT = option("output")


class PendingFile(NamedTuple):
    """A file that another thread writes for a record that is kept.

    Attributes:
        written: its end.
        show: waits for the end and shows the file; raises as :meth:`Renderer.add`.
    """

    written: Future[Any]
    show: Callable[[], None]


class Renderer:
    """Shows the records of a store; the base class shows none. Each record comes with its clip, as the planned job.

    Attributes:
        captions: those of the run, from :meth:`open` on.
    """

    captions: RunCaptions

    @property
    def place(self) -> str:
        """Name of the place where the records are shown, for a preview of the run."""
        return ""

    def outputs(self, jobs: Iterable[Job]) -> Iterable[NamedPath]:
        """Return the files that are written for these clips or shards, each with the option that names it."""
        return ()

    def open(self, captions: RunCaptions) -> None:
        """Join a run whose journals are open; nothing is written yet.

        Raises:
            UsageError: a file is there that may not be replaced.
        """
        self.captions = captions

    def check(self, job: Job) -> None:
        """Check before a clip is captioned that its record can be shown.

        Raises:
            OutputError: of kind :data:`ONE_CLIP`.
        """

    def leaves(self, job: Job) -> bool:
        """Return True if all files of a clip exist and must not be replaced, so that captioning it is useless."""
        return False

    def caption_files(self, job: Job) -> dict[Path, str]:
        """Return the files that hold the caption of a clip or its segment and nothing else, with their formats."""
        return {}

    def prepare(self, job: Job, record: RecordDict) -> None:
        """Prepare for a record that is about to be kept; raises as :meth:`add`."""

    def add(self, job: Job, record: RecordDict) -> PendingFile | None:
        """Show a record that is kept now; return a file of it that is shown later.

        Raises:
            OutputError: it could not be written; of kind :data:`ONE_CLIP` if those of other clips still can.
        """
        return None

    def restore(self, job: Job, settings: str) -> None:
        """Show a clip that needs no captioning, where it is missing."""

    def file_changes(self, job: Job, settings: str, *, captioned: bool) -> Mapping[Path, str]:
        """Return the effect of a run on existing files, for a clip that it would caption or, if not, finds done."""
        return {}

    def settle(self) -> None:
        """Prepare for the compaction of the journals, at the end of a run."""

    def finish(self, *, complete: bool) -> list[str]:
        """Write from the compacted journals what is written once; return notes for the user."""
        return []


def in_order(parts: Mapping[int | None, JournalEntry]) -> list[JournalEntry]:
    """Return a clip's records in the order of its segments."""
    return sorted(parts.values(), key=lambda one: one.segment or 0)


@contextlib.contextmanager
def failing_one_clip(path: Path | str) -> Iterator[None]:
    """Make errors of a clip's file concern this clip alone: its record is in the journal."""
    try:
        yield
    except OSError as error:
        raise unwritable_error(path, error, ONE_CLIP) from None
    except OutputError as error:
        hint = "run the same command again once it can be; nothing is captioned twice"
        raise OutputError(error.message, hint=hint, kind=ONE_CLIP) from None


def make_folder(folder: Path) -> None:
    """Create a folder and check that it is writable.

    Raises:
        OutputError: it cannot be created or written.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made: {error.strerror or error}") from None
    except RecursionError:  # of a name that nests folders without end
        raise OutputError(f"{str(folder)[:80]}...: cannot be made: too many nested folders") from None
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{folder}: no permission to write there")
