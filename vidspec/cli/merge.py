"""``vidspec merge``: merges the output files of several runs or shards."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vidspec.cli.options import DebugOption, QuietOption, complete_format
from vidspec.cli.printed import print_note
from vidspec.errors import UsageError
from vidspec.events.tally import counted
from vidspec.files import back_up, backup_of, behind_link, check_output, replacing

if TYPE_CHECKING:
    from vidspec.runs.formats.base import OutputFormat
    from vidspec.runs.store.file_states import FileMark, FileMarks

__all__ = ["merge"]


def merge(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Files of --format jsonl, json, parquet or webdataset."),
    ],
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="File to write or replace; - is standard output."),
    ] = "-",
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="Format of the output (default: by the suffix of -o FILE, else jsonl).",
            autocompletion=complete_format,
        ),
    ] = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Merge the records of several runs or shards, sorted by path: each clip once, captions preferred to failures."""
    from vidspec.runs.formats.base import SECOND_TEXTS, format_of_suffix, make_format
    from vidspec.runs.merge import merge_records, render_records
    from vidspec.runs.writers import StdoutLines

    named = f"--output {output}" if form is None else f"--format {form}"
    form = form or format_of_suffix(output) or "jsonl"
    output_format = make_format(form, several=True)
    if not output_format.is_text:
        raise UsageError(f"{named}: merge writes text", hint="--format jsonl")
    if output != "-":
        check_output(Path(output), (), "--output", output_format.replaceable)
    found = merge_records(files, one_each=output_format.lists_files)
    folder = "." if output == "-" else Path(output).parent
    texts = [key for key in SECOND_TEXTS if key in found.texts]
    output_format = make_format(form, several=True, data=found.data, texts=texts, folder=folder)
    content = render_records(found, output_format, measured=found.measured)
    if output == "-":
        lines = StdoutLines()
        for piece in content:
            for line in piece.decode().removesuffix("\n").split("\n") if piece else ():
                lines.write(line)
    elif (backup := _write(Path(output), content, output_format)) is not None and not quiet:
        print_note(f"{output}: the earlier file, which has other captions, is now {backup}")
    if not quiet:
        more = [f"{found.duplicates} in several files"] * bool(found.duplicates)
        more += [f"{counted(found.torn, 'torn line')} left out"] * bool(found.torn)
        print_note("; ".join([f"{counted(len(found), 'record')}, {found.failed} failed", *more]))


def _write(path: Path, content: Iterable[bytes], form: OutputFormat) -> Path | None:
    """Write or replace a file; return the backup of an earlier one if it has lines that the new one lacks.

    Raises:
        UsageError: a run is writing it, or it was edited since a run wrote it.
        OutputError: it cannot be written.
    """
    from vidspec.runs.run_file import appended_lines
    from vidspec.runs.store.file_states import KnownFiles
    from vidspec.runs.store.journal import Journal, lock_file, unwritable_error

    def appended(marks: FileMarks, mark: FileMark) -> bytes:
        return appended_lines(Journal(marks.journal, read_only=True), mark, form)

    with lock_file(Path(os.path.realpath(path)), path):
        state = KnownFiles().state(path, appended, named=True)
        if state == "edited":
            hint = f"name another file, or move this one to {backup_of(behind_link(path))}"
            raise UsageError(f"{path}: was edited since a run wrote it, and is left alone", hint=hint)
        try:
            with replacing(target := behind_link(path)) as file:
                file.writelines(content)
                file.flush()
                if state == "written" or not _loses_lines(path, Path(file.name)):
                    return None
                return back_up(target)
        except OSError as error:
            raise unwritable_error(path, error) from None


def _loses_lines(old: Path, new: Path) -> bool:
    """Return True if a line with a caption is not in the new file; both are in the order of a merge."""
    if not old.is_file():
        return False
    with old.open("rb") as before, new.open("rb") as after:
        return any(b'"caption": null' not in line and line not in after for line in before)
