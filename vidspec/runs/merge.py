"""Renders the captions of places into files of one format each. Captions nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from vidspec.errors import UsageError, option
from vidspec.events.record import checking_records
from vidspec.files import back_up, backup_of, behind_link, check_output, encode_line
from vidspec.runs.formats.base import OutputFormat
from vidspec.runs.run_file import edited_error, write_marked
from vidspec.runs.store.caption_set import HeldRecords
from vidspec.runs.store.journal import Journal, hidden_journal, lock_file
from vidspec.runs.store.known_journals import KnownJournals


def render_records(records: HeldRecords, form: OutputFormat) -> Iterator[bytes]:
    """Yield the content of one file of all records, piece by piece if the format has lines.

    Raises:
        UsageError: the format takes one clip only, or needs more than the records have.
    """
    with checking_records("merge"):
        if form.one_clip:
            if len({record["job"]["clip"] for record in records}) > 1:
                raise UsageError(f"{option('format', form.name)}: several clips need a file each")
            yield encode_line(form.document([*records]) or "")
        elif form.measured and not records.measured:
            named = option("format", form.name)
            raise UsageError(f"{named}: these records hold no measurements", hint=option("format", "jsonl"))
        elif form.update == "append":
            for line in (form.header, *map(form.line, records)):
                if line is not None:
                    yield encode_line(f"{line}\n")
        else:
            yield form.content(records.listed() if form.lists_files else records)


def merged_paths(output: str, forms: Sequence[OutputFormat]) -> list[Path]:
    """Return the file of each format: the output itself of a lone one, else a name for each suffix.

    Formats that share a suffix have their own names before it. In a folder files are called as those of a run.
    """
    path = Path(output)
    if len(forms) == 1 and not path.is_dir():
        return [path]
    bases = [path / form.run_name if path.is_dir() else path.with_suffix("") for form in forms]
    plain = [base.with_name(base.name + form.suffix) for base, form in zip(bases, forms, strict=True)]
    return [
        base.with_name(f"{base.name}.{form.name}{form.suffix}") if plain.count(file) > 1 else file
        for file, base, form in zip(plain, bases, forms, strict=True)
    ]


def check_merged(path: Path, form: OutputFormat) -> None:
    """Check before anything is read that a file may be written: it is free, ours, or one of records.

    Raises:
        UsageError: it is not.
    """
    known = KnownJournals().read(hidden_journal(path))
    is_ours = known is not None and bool(known.index.marks.of(path))
    check_output(path, (), "--output", None if is_ours else form.replaceable)


def write_merged(path: Path, content: Iterable[bytes], form: OutputFormat) -> Path | None:
    """Write or replace a file; return the backup of an earlier one if it has lines that the new one lacks.

    Raises:
        UsageError: a run is writing it, or it was edited since it was written.
        OutputError: it cannot be written.
    """
    backup: list[Path | None] = []

    def mark(part: Path, size: int, sha256: str) -> None:
        if form.replaceable is OutputFormat.replaceable:  # its content does not tell that it is ours
            with closing(Journal(hidden_journal(path))) as journal:
                journal.mark(path, size, sha256)
                journal.compact([])
        backup.append(back_up(target) if state != "written" and _loses_lines(path, part) else None)

    target = behind_link(path)
    with lock_file(Path(os.path.realpath(path)), path):
        state = KnownJournals().state(path, form=form, named=True)
        if state == "edited":
            raise edited_error(path, f"name another file, or move this one to {backup_of(target)}")
        write_marked(target, content, mark, path)
    return backup[0]


def _loses_lines(old: Path, new: Path) -> bool:
    """Return True if a line with a caption is not in the new file; both are in the order of a merge."""
    if not old.is_file():
        return False
    with old.open("rb") as before, new.open("rb") as after:
        return any(b'"caption": null' not in line and line not in after for line in before)
