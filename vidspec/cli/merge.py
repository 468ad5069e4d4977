"""``vidspec merge``: merges the output files of several runs or shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vidspec.cli.options import CsvRawOption, DebugOption, QuietOption
from vidspec.cli.printed import print_note
from vidspec.dataset.formats import Format
from vidspec.errors import UsageError
from vidspec.files import check_output, write_whole

__all__ = ["merge"]


def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files written with --format jsonl or json.")],
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="File to write or replace; - is standard output."),
    ] = "-",
    form: Annotated[Format, typer.Option("--format", help="Format of the output.")] = "jsonl",
    csv_raw: CsvRawOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Merge the records of several runs or shards, sorted by path: each clip once, captions preferred to failures."""
    from vidspec.dataset.merge import kind_of, render_records
    from vidspec.dataset.merge import merge_records as merged
    from vidspec.dataset.writers import StdoutLines

    if form == "parquet":
        raise UsageError("--format parquet: merge writes text", hint="--format jsonl")
    if output != "-":
        check_output(Path(output), (), "--output", kind_of(form))
    found = merged(files)
    content = render_records(found.records, form, raw_csv=csv_raw)
    if output == "-":
        lines = StdoutLines()
        for line in content.removesuffix("\n").split("\n") if content else ():
            lines.write(line)
    else:
        write_whole(Path(output), content)
    if not quiet:
        more = [f"{found.duplicates} in several files"] * bool(found.duplicates)
        more += [f"{found.torn} torn lines left out"] * bool(found.torn)
        print_note("; ".join([f"{len(found.records)} records, {found.failed} failed", *more]))
