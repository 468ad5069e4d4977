"""Reads the captions of places that a user names: folders, journals, and files of records in any format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from vidspec.errors import OutputError, UsageError
from vidspec.events.record import RecordDict
from vidspec.files import encode_line, open_own
from vidspec.runs.formats.base import PartFormat, make_format
from vidspec.runs.job import Job
from vidspec.runs.store.caption_set import CaptionSet
from vidspec.runs.store.journal import Journal
from vidspec.runs.store.known_journals import KnownJournals
from vidspec.runs.store.sidecars import SidecarNames

_HINT = "name what --format jsonl, json, parquet or webdataset wrote"
#: Formats of files that hold the records of a shard or a run as a whole, by suffix.
_PARTS = {".parquet": "parquet", ".tar": "webdataset"}
#: Keys of a record of any version.
_KEYS = ("path", "caption", "token_ids", "error")


def read_captions(places: Iterable[Path], *, one_each: bool = False) -> CaptionSet:
    """Return the captions of all places, each captioning once.

    Of a folder these are those of all records in it; files whose captions were edited win over their journals. Where a
    folder has a journal of its own, clips in it whose caption files no run wrote have an entry too.

    Args:
        places: folders, and files of records.
        one_each: of a clip that was captioned in several ways, take what its file shows, else the last.

    Raises:
        UsageError: a file that is named cannot be read or holds anything other than records.
    """
    reader = _PlaceReader()
    journals: list[Journal] = []
    for place in places:
        journals += reader.folder(place) if place.is_dir() else [reader.file(place)]
    roots = dict.fromkeys(one.shown.parent for one in journals if _is_of_folder(one.shown))
    names = SidecarNames(make_format("txt"), None, None, "")
    files = ((job, names.path(job), "txt") for root in roots for job in _clips_in(root))
    captions = CaptionSet(journals, reader.known, files, one_each=one_each)
    captions.copies = reader.copies
    return captions


class _PlaceReader:
    """Opens files of records as journals; those that have no lines are copied, as lines, to temporary files.

    Attributes:
        copies: folder of the copies; None without any. They go with it.
        known: the hidden journals.
    """

    def __init__(self) -> None:
        self.known = KnownJournals()
        self.copies: TemporaryDirectory[str] | None = None
        self._count = 0

    def folder(self, folder: Path) -> list[Journal]:
        """Return the journals of a folder and those below, the ones that win last; other files are left out."""
        found = sorted(folder.rglob("*.jsonl"))
        lines = [
            self._journal(path) for path in found if path.is_file() and not (_is_hidden(path) and path.is_symlink())
        ]
        journals = [one for one in lines if not one.foreign and one.index.entries]
        hidden = [one for one in journals if _is_hidden(one.shown)]
        plain = [one for one in journals if not _is_hidden(one.shown)]
        edited: list[Journal] = []
        for path in sorted(folder.rglob("*.json")):
            if (records := _document(path)) is not None:
                (edited if self.known.state(path) == "edited" else plain).append(self._copied(path, records))
        parts = [path for suffix in _PARTS for path in sorted(folder.rglob(f"*{suffix}")) if _is_part(path)]
        plain = [*map(self.file, parts), *plain]
        edited += [one for one in plain if self.known.state(one.shown) == "edited" and one not in edited]
        return [*(one for one in plain if one not in edited), *hidden, *edited]

    def file(self, path: Path) -> Journal:
        """Return a file of records as a journal.

        Raises:
            UsageError: it cannot be read or holds anything other than records.
        """
        try:
            if path.is_char_device():
                raise UsageError(f"{path}: is not a regular file", hint=_HINT)
            path.open("rb").close()
            if path.suffix in _PARTS:
                if not _is_part(path):
                    raise UsageError(f"{path}: holds no records of vidspec", hint=_HINT)
                with path.open("rb") as file:
                    return self._copied(path, _part_format(path).read_records(file))
            journal = self._journal(path)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
        except OutputError as error:
            raise UsageError(error.message) from None
        if journal.foreign and (records := _document(path)) is not None:
            return self._copied(path, records)
        odd = next((one.offset for one in journal.index.entries if not one.clip), 0 if journal.foreign else None)
        if odd is not None:
            number = path.read_bytes()[:odd].count(b"\n") + 1
            raise UsageError(f"{path}, line {number}: is not a record of vidspec", hint=_HINT)
        return journal

    def _journal(self, path: Path) -> Journal:
        journal = Journal(path, visible=not _is_hidden(path), read_only=True)
        if _is_hidden(path):
            self.known.add(journal)
        return journal

    def _copied(self, path: Path, records: Iterable[RecordDict]) -> Journal:
        self.copies = self.copies or TemporaryDirectory(prefix="vidspec")
        self._count += 1
        copy = Path(self.copies.name, f"{self._count}.jsonl")
        with open_own(copy, "xb") as file:
            for record in records:
                job = record.get("job") or {"clip": record["path"], "settings": ""}
                file.write(encode_line(json.dumps({**record, "job": job}) + "\n"))
        journal = Journal(copy, read_only=True)
        journal.shown = path
        return journal


def _is_hidden(path: Path) -> bool:
    return fnmatch(path.name, ".*vidspec*.jsonl")


def _is_of_folder(path: Path) -> bool:
    """Return True if this is the journal of a folder's clips, of a whole run or a shard."""
    return fnmatch(path.name, ".vidspec*.jsonl")


def _clips_in(folder: Path) -> Iterator[Job]:
    from vidspec.config.run_spec import RunSpec
    from vidspec.runs.inputs import collect_inputs
    from vidspec.runs.sources.base import is_shard

    found = collect_inputs(RunSpec(paths=(str(folder),), include_images=True), links=True)
    return (job for job in found.entries if not is_shard(job.path))


def _is_part(path: Path) -> bool:
    """Return True if a file is one for a shard or a run, as ``--format parquet`` or ``webdataset`` writes it."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _part_format(path).read_summary(file) is not None


def _part_format(path: Path) -> PartFormat:
    return cast("PartFormat", make_format(_PARTS[path.suffix]))


def _document(path: Path) -> list[RecordDict] | None:
    """Return the records of one clip's file, as ``--output-dir --format json`` writes it; None if it is none."""
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    records = content if isinstance(content, list) else [content]
    return records if records and all(isinstance(one, dict) and {*_KEYS} <= one.keys() for one in records) else None
