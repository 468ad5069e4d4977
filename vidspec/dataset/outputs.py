"""Where records go: standard output, one file, a file for each clip, or several of these; files can be resumed.

What makes a run resumable is a journal (``vidspec.dataset.journal``). For ``jsonl`` and ``json`` in one file the
file is its own journal; every other file is a rendering of one that lies hidden beside it.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from vidspec.dataset.formats import Format, document, header, line, listing
from vidspec.dataset.identity import clip_id
from vidspec.dataset.job import Job
from vidspec.dataset.journal import Journal, Stored, gone, is_at
from vidspec.dataset.records import lean
from vidspec.dataset.sidecars import Names, check_names
from vidspec.dataset.writers import Lines
from vidspec.errors import OutputError, UsageError
from vidspec.files import encoded, write_whole

__all__ = [
    "ONE_CLIP",
    "Collected",
    "Journaled",
    "Looked",
    "OneFile",
    "Output",
    "Several",
    "Sidecars",
    "Stream",
    "hidden_journal",
    "journal_beside",
    "journal_of",
]

Record = dict[str, Any]

#: The kind of an OutputError that concerns one clip; after any other nothing more can be kept.
ONE_CLIP = "sidecar"


class Output:
    """Takes records, and knows which ones an earlier run left; this one keeps nothing and knows of none."""

    def parts(self, entry: Job, settings: str) -> Mapping[int | None, Stored]:
        """Records of an entry under these settings, by segment."""
        return {}

    def read(self, entry: Job, stored: Stored) -> Record:
        """An earlier record."""
        raise AssertionError("there is none")

    def same_content(self, entry: Job, sha256: str, settings: str) -> Record | None:
        """An earlier caption of the same bytes under another name."""
        return None

    def others(self, settings: Collection[str]) -> int:
        """How many earlier records were made under other settings."""
        return 0

    def check(self, entry: Job) -> None:
        """Find out before an entry is captioned that its record could not be kept.

        Raises:
            OutputError: kind :data:`ONE_CLIP`.
        """

    def add(self, entry: Job, record: Record) -> None:
        """Keep a record; when this returns it cannot be lost.

        Raises:
            OutputError: it could not be kept; of kind :data:`ONE_CLIP` where others still can.
        """

    def earlier(self, entry: Job, settings: str) -> None:
        """An entry that needs no captioning; its file is written again if it is gone."""

    def close(self, entries: Sequence[Job], *, complete: bool) -> list[str]:
        """No more records come; returns what the user should know."""
        return []


class Collected:
    """Puts the segments of each clip together: gives all records of a clip with its last one."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[int, Record]] = {}

    def add(self, record: Record) -> list[Record] | None:
        """The clip's records in order if ``record`` was the last one missing, else None."""
        job = record["job"]
        if job.get("segment") is None:
            return [record]
        parts = self._waiting.setdefault(job["clip"], {})
        parts[job["segment"]] = record
        if len(parts) < job["segments"]:
            return None
        del self._waiting[job["clip"]]
        return [parts[number] for number in sorted(parts)]


class Stream(Output):
    """Lines on standard output (or into a pipe): nothing is remembered.

    Args:
        lines: takes them.
        form, several, raw_csv: how they look.
        order: clips in whose order records are written, each as soon as those before it are; None for as they come.
    """

    def __init__(
        self,
        lines: Lines,
        form: Format,
        *,
        several: bool,
        raw_csv: bool = False,
        order: Sequence[Job] | None = None,
    ) -> None:
        self.lines, self.form, self.several, self.raw_csv = lines, form, several, raw_csv
        self._collected = Collected()
        self._begun = False
        self._due = None if order is None else deque(dict.fromkeys(map(clip_id, order)))
        self._early: dict[str, list[Record]] = {}

    def add(self, entry: Job, record: Record) -> None:
        if self._due is None:
            self._write(record)
            return
        self._early.setdefault(clip_id(entry), []).append(record)
        while self._due and self._due[0] in self._early:
            records = self._early.pop(self._due[0])
            for one in records:
                self._write(one)
            job = records[-1]["job"]
            if job.get("segment", 0) + 1 < job.get("segments", 1):
                return
            self._due.popleft()

    def _write(self, record: Record) -> None:
        first = header(self.form)
        if first is not None and not self._begun:
            self.lines.write(first)
        self._begun = True
        text: str | None
        if self.form in ("srt", "vtt"):
            records = self._collected.add(record)
            text = document(records, self.form) if records else None
            text = text.removesuffix("\n") if text else None
        else:
            shown = lean(record) if self.form == "jsonl" else record
            text = line(shown, self.form, several=self.several, raw_csv=self.raw_csv)
        if text is not None:
            self.lines.write(text)

    def close(self, entries: Sequence[Job], *, complete: bool) -> list[str]:
        for clip in self._due or ():  # behind one that did not come, as when the run was interrupted
            for record in self._early.pop(clip, ()):
                self._write(record)
        self.lines.close(complete=complete)
        return []


class Journaled(Output):
    """What all outputs with a memory share.

    Args:
        journal_for: where the journal of an entry is; each is opened once.
        fresh: begin anew.
        visible: the file that users know the journal by, if it is not its own.
        look: only read what is there.
    """

    def __init__(
        self,
        journal_for: Callable[[Job], Path],
        *,
        fresh: bool = False,
        visible: Path | None = None,
        look: bool = False,
    ) -> None:
        self._where, self._fresh, self._visible, self._look = journal_for, fresh, visible, look
        self._journals: dict[Path, Journal] = {}
        self._lost: dict[Path, OutputError] = {}  # journals that take nothing any more, and why

    def journal(self, entry: Job) -> Journal:
        """The journal that ``entry`` belongs to.

        Raises:
            OutputError: it takes nothing any more.
        """
        path = self._where(entry)
        if path in self._lost:
            raise self._lost[path]
        if path not in self._journals:
            self._journals[path] = Journal(path, fresh=self._fresh, visible=self._visible, look=self._look)
        return self._journals[path]

    @contextlib.contextmanager
    def _keeping(self, entry: Job) -> Iterator[None]:
        """What cannot be kept in here ends the journal of ``entry``."""
        try:
            yield
        except OutputError as error:
            self._lost[self._where(entry)] = error
            raise

    def parts(self, entry: Job, settings: str) -> Mapping[int | None, Stored]:
        return self.journal(entry).parts(clip_id(entry), settings)

    def read(self, entry: Job, stored: Stored) -> Record:
        return self.journal(entry).read(stored)

    def same_content(self, entry: Job, sha256: str, settings: str) -> Record | None:
        stored = self.journal(entry).by_hash(sha256, settings)
        return self.journal(entry).read(stored) if stored else None

    def others(self, settings: Collection[str]) -> int:
        return sum(journal.others(settings) for journal in self._journals.values())

    def add(self, entry: Job, record: Record) -> None:
        with self._keeping(entry):
            self.journal(entry).append(record)

    def close(self, entries: Sequence[Job], *, complete: bool) -> list[str]:
        notes = []
        try:
            for path, journal in self._journals.items():
                if path not in self._lost:
                    journal.tidy([clip_id(entry) for entry in entries if self._where(entry) == path])
                if journal.repaired:
                    notes.append(f"{journal.shown}: a torn last line was repaired; its clip was captioned again")
                if journal.damaged:
                    notes.append(f"{journal.shown}: {journal.damaged} damaged lines are now in {journal.shown}.damaged")
            self._render(entries, complete=complete, notes=notes)
        finally:
            for path, journal in self._journals.items():
                journal.close(complete=complete and path not in self._lost)
        moved = [one for one in self._journals.values() if one.replaced]
        notes += [f"{one.shown}: the earlier file is now {one.replaced}" for one in moved]
        return notes

    def _render(self, entries: Sequence[Job], *, complete: bool, notes: list[str]) -> None:
        pass


class Looked(Journaled):
    """What lies there of earlier runs, neither locked nor repaired; keeps nothing."""

    def __init__(self, journal_for: Callable[[Job], Path]) -> None:
        super().__init__(journal_for, look=True)

    def records(self) -> Iterator[Record]:
        """All of the journals that were looked into so far."""
        return chain.from_iterable(journal.records() for journal in self._journals.values())

    def add(self, entry: Job, record: Record) -> None:
        """Nothing is kept."""

    def close(self, entries: Sequence[Job], *, complete: bool) -> list[str]:
        return []


class OneFile(Journaled):
    """One file for all clips."""

    def __init__(self, path: Path, form: Format, *, several: bool, fresh: bool = False, raw_csv: bool = False) -> None:
        own = form in ("json", "jsonl")
        super().__init__(lambda _: journal_of(path, form), fresh=fresh, visible=path)
        self.path, self.form, self.several, self.raw_csv, self._own = path, form, several, raw_csv, own
        self._begun: os.stat_result | None = None  # the file as this run last left it
        if not own and form in ("srt", "vtt", "webdataset-txt") and several:
            raise UsageError(f"--format {form}: several clips need a file each", hint="leave --output out")
        journal = self.journal(Job(""))  # the lock is taken and the file repaired before a model is loaded
        first = next(journal.records(), None)
        if own and first is not None and ("timings" in first) != (form == "json"):
            journal.close()
            other = "jsonl" if form == "json" else "json"
            raise UsageError(f"{path}: holds records of --format {other}", hint="go on with that, or --overwrite")
        self._keep = not own and first is None
        self._moved: Path | None = None

    def add(self, entry: Job, record: Record) -> None:
        with self._keeping(entry):
            if not self._own:
                self._set_aside()  # before the record: a file beside a journal is always that journal's
            super().add(entry, lean(record) if self.form == "jsonl" else record)
            if not self._own:
                self._append(record)

    def _append(self, record: Record) -> None:
        if self._begun is None or self.form in ("srt", "vtt"):
            self._whole()
            return
        text = line(record, self.form, several=self.several, raw_csv=self.raw_csv)
        if text is not None:
            self._check()
            try:
                with open(self.path, "ab") as file:
                    file.write(encoded(text + "\n"))
            except OSError as error:
                raise OutputError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def _check(self) -> None:
        """Find out whether the file is still the one that this run began."""
        if self._begun is not None and not is_at(self.path, self._begun):
            raise gone(self.path)

    def _set_aside(self) -> None:
        """Keep a file that no journal of ours tells of."""
        if self._keep and self.path.is_file() and self.path.stat().st_size > 0:
            try:
                self._moved = self.path.replace(self.path.with_name(self.path.name + "~"))
            except OSError as error:
                raise OutputError(f"{self.path}: cannot be written: {error.strerror or error}") from None
        self._keep = False

    def _whole(self) -> None:
        """Write the file anew from its journal."""
        self._check()
        records = self.journal(Job("")).records()
        if self.form in ("srt", "vtt"):
            content = document(list(records), self.form) or ""
        else:
            content = listing(records, self.form, several=self.several, raw_csv=self.raw_csv)
        write_whole(self.path, content)
        self._begun = self.path.stat()

    def _render(self, entries: Sequence[Job], *, complete: bool, notes: list[str]) -> None:
        if self._own or self._lost or not (complete or self._begun):
            return
        self._set_aside()
        self._whole()
        if self._moved:
            notes.append(f"{self.path}: the earlier file is now {self._moved}")


class Sidecars(Journaled):
    """A file for each clip and format, written when all of the clip is captioned; ``names`` share a folder."""

    def __init__(self, names: Sequence[Names], entries: Sequence[Job], *, fresh: bool = False, label: str = "") -> None:
        super().__init__(lambda entry: journal_beside(names[0], entry, label), fresh=fresh)
        self.names = tuple(names)
        check_names(names, entries)
        journals = {self._where(entry): entry for entry in entries}
        self._folders = len(journals)
        for journal, entry in sorted(journals.items()):
            with contextlib.suppress(OutputError), self._keeping(entry):  # it costs its own clips alone
                _make_folder(journal.parent)
                self.journal(entry)
        if len(self._lost) == self._folders > 0:
            first = next(iter(self._lost.values()))
            raise UsageError(first.message, hint=first.hint)
        self._moved: list[Path] = []

    def journal(self, entry: Job) -> Journal:
        try:
            return super().journal(entry)
        except OutputError as error:
            raise self._of_one_clip(error) from None

    def check(self, entry: Job) -> None:
        self.journal(entry)
        for path in (names.path(entry) for names in self.names):
            folder = path.parent
            while not folder.exists():  # it is made with its first file
                folder = folder.parent
            if not (folder.is_dir() and os.access(folder, os.W_OK)):
                raise OutputError(
                    f"{path}: cannot be written: {folder} takes no files",
                    hint="give the same command again when it does",
                    kind=ONE_CLIP,
                )

    def add(self, entry: Job, record: Record) -> None:
        if record["caption"] is not None or record["job"].get("segment") is not None:
            # What the file held goes before the record comes: a file beside a record is always that record's.
            foreign = not self.journal(entry).knows(clip_id(entry))
            for names in self.names:
                self._clear(names.path(entry), foreign=foreign)
        try:
            super().add(entry, record)
        except OutputError as error:
            raise self._of_one_clip(error) from None
        self._write(entry, record["job"]["settings"])

    def _of_one_clip(self, error: OutputError) -> OutputError:
        """An error of a journal, which is that of one clip as long as there are others."""
        if len(self._lost) == self._folders:
            return error
        return OutputError(error.message, hint=error.hint, kind=ONE_CLIP)

    def earlier(self, entry: Job, settings: str) -> None:
        if not all(names.path(entry).exists() for names in self.names):
            self._write(entry, settings)

    def _clear(self, path: Path, *, foreign: bool) -> None:
        try:
            if not foreign:
                path.unlink(missing_ok=True)
            elif path.exists():
                self._moved.append(path.replace(path.with_name(path.name + "~")))
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror or error}", kind=ONE_CLIP) from None

    def _write(self, entry: Job, settings: str) -> None:
        stored = sorted(self.parts(entry, settings).values(), key=lambda one: one.segment or 0)
        if len(stored) < (stored[0].segments or 1):
            return
        records = [self.read(entry, one) for one in stored]
        for names in self.names:
            content = document(records, names.form)
            if content is None:
                continue
            try:
                _make_folder(names.path(entry).parent)
                write_whole(names.path(entry), content)
            except OutputError as error:  # its record is kept
                hint = "give the same command again when it can be: nothing is captioned twice"
                raise OutputError(error.message, hint=hint, kind=ONE_CLIP) from None

    def _render(self, entries: Sequence[Job], *, complete: bool, notes: list[str]) -> None:
        if self._moved:
            more = f" and {len(self._moved) - 1} more" if len(self._moved) > 1 else ""
            notes.append(f"files that were there before are kept as {self._moved[0]}{more}")


class Several(Output):
    """Counts as done what every output with a memory has; what they remember, a stream among them is told again.

    Args:
        outputs: at most one of them a stream, which then stands beside one with whole records; files beside clips last,
            as those that a single clip may not be written to.
    """

    def __init__(self, outputs: Sequence[Output]) -> None:
        self.outputs = outputs
        self._kept = [one for one in outputs if not isinstance(one, Stream)]
        self._streams = [one for one in outputs if isinstance(one, Stream)]

    def parts(self, entry: Job, settings: str) -> Mapping[int | None, Stored]:
        first, *others = [one.parts(entry, settings) for one in self._kept] or [{}]
        return {
            key: stored
            for key, stored in first.items()
            if all(key in other and other[key].content.same(stored.content) for other in others)
        }

    def read(self, entry: Job, stored: Stored) -> dict[str, Any]:
        return self._kept[0].read(entry, stored)

    def same_content(self, entry: Job, sha256: str, settings: str) -> dict[str, Any] | None:
        # What one wrote may be less than another needs: only outputs that are alike could share it.
        return self._kept[0].same_content(entry, sha256, settings) if len(self._kept) == 1 else None

    def others(self, settings: Collection[str]) -> int:
        return max(one.others(settings) for one in self._kept)

    def check(self, entry: Job) -> None:
        for one in self.outputs:
            one.check(entry)

    def add(self, entry: Job, record: dict[str, Any]) -> None:
        for one in self.outputs:
            one.add(entry, record)

    def earlier(self, entry: Job, settings: str) -> None:
        stored = self.parts(entry, settings)
        for one in self._kept:
            one.earlier(entry, settings)
        for stream in self._streams:
            for part in sorted(stored.values(), key=lambda one: one.segment or 0):
                stream.add(entry, self.read(entry, part))

    def close(self, entries: Sequence[Job], *, complete: bool) -> list[str]:
        notes: list[str] = []
        failure: Exception | None = None
        for one in self.outputs:
            try:
                notes += one.close(entries, complete=complete)
            except Exception as error:  # the others must be closed all the same
                failure = failure or error
        if failure is not None:
            raise failure
        return notes


def hidden_journal(path: Path) -> Path:
    """The journal of a file that cannot be its own."""
    return path.with_name(f".{path.name}.vidspec.jsonl")


def journal_of(path: Path, form: Format) -> Path:
    """The journal of one file for all clips: itself where its lines are whole records."""
    return path if form in ("json", "jsonl") else hidden_journal(path)


def journal_beside(names: Names, entry: Job, label: str) -> Path:
    """The journal of the clips' own files; ``label`` is the shard's."""
    return Path(names.folder or entry.root) / f".vidspec{label}.jsonl"


def _make_folder(folder: Path) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made: {error.strerror or error}") from None
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{folder}: no permission to write there")
