"""``vidspec merge``: merges the output files of several runs or shards."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from vidspec.cli.options import CsvRawOption, DebugOption, QuietOption, complete_format
from vidspec.cli.printed import print_note
from vidspec.errors import UsageError
from vidspec.events.tally import counted
from vidspec.files import check_output, replacing

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
        str, typer.Option("--format", metavar="NAME", help="Format of the output.", autocompletion=complete_format)
    ] = "jsonl",
    csv_raw: CsvRawOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Merge the records of several runs or shards, sorted by path: each clip once, captions preferred to failures."""
    from vidspec.runs.formats.base import make_format
    from vidspec.runs.merge import merge_records, render_records
    from vidspec.runs.writers import StdoutLines

    output_format = make_format(form, several=True)
    if not output_format.is_text:
        raise UsageError(f"--format {form}: merge writes text", hint="--format jsonl")
    if output != "-":
        check_output(Path(output), (), "--output", output_format.replaceable)
    found = merge_records(files)
    output_format = make_format(form, several=True, raw_csv=csv_raw, data=found.data)
    content = render_records(found, output_format, measured=found.measured)
    if output == "-":
        lines = StdoutLines()
        for piece in content:
            for line in piece.decode().removesuffix("\n").split("\n") if piece else ():
                lines.write(line)
    else:
        _write(Path(output), content)
    if not quiet:
        more = [f"{found.duplicates} in several files"] * bool(found.duplicates)
        more += [f"{counted(found.torn, 'torn line')} left out"] * bool(found.torn)
        print_note("; ".join([f"{counted(len(found), 'record')}, {found.failed} failed", *more]))


def _write(path: Path, content: Iterable[bytes]) -> None:
    """Write or replace a file, unless a run is writing it.

    Raises:
        UsageError: a run is.
        OutputError: it cannot be written.
    """
    from vidspec.runs.journal import lock_file, unwritable_error

    with lock_file(Path(os.path.realpath(path)), path):
        try:
            with replacing(path) as file:
                file.writelines(content)
        except OSError as error:
            raise unwritable_error(path, error) from None
