"""``vidspec merge``: one file out of those that shards wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vidspec.cli.options import CsvRaw, Debug, Format, Quiet
from vidspec.cli.report import note
from vidspec.files import check_output, write_whole

__all__ = ["merge"]


def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What --format jsonl or json wrote.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="An earlier one is replaced; - is stdout.")
    ] = "-",
    form: Annotated[Format, typer.Option("--format", help="Of the output.")] = Format.jsonl,
    csv_raw: CsvRaw = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Merge records of several runs or shards: each clip once, a caption before a failure, sorted by path."""
    from vidspec.dataset.merge import kind_of, rendered
    from vidspec.dataset.merge import merge as merged
    from vidspec.dataset.writers import StdoutLines

    if output != "-":
        check_output(Path(output), (), "--output", kind_of(form.value))
    found = merged(files)
    content = rendered(found.records, form.value, raw_csv=csv_raw)
    if output == "-":
        lines = StdoutLines()
        for line in content.removesuffix("\n").split("\n") if content else ():
            lines.write(line)
    else:
        write_whole(Path(output), content)
    if not quiet:
        more = [f"{found.duplicates} in several files"] * bool(found.duplicates)
        more += [f"{found.torn} torn lines left out"] * bool(found.torn)
        note("; ".join([f"{len(found.records)} records, {found.failed} failed", *more]))
