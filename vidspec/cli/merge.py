"""``vidspec merge``: writes lists, tables and files of records from the captions of runs and folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vidspec.cli.options import DebugOption, QuietOption, complete_format
from vidspec.cli.printed import print_note
from vidspec.errors import UsageError
from vidspec.events.tally import counted

if TYPE_CHECKING:
    from vidspec.runs.formats.base import OutputFormat


def merge(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|FOLDER...",
            help="Folders of captioned clips; files of --format jsonl, json, parquet or webdataset.",
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE|FOLDER",
            help="File to write or replace, or a folder for the files of several formats; - is standard output.",
        ),
    ] = "-",
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME[,NAME...]",
            help="Formats of the output (default: by the suffix of -o FILE, else jsonl).",
            autocompletion=complete_format,
        ),
    ] = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Write any list or table from captions that are there, without models: each clip once, with the text it has now.

    A caption file that was edited, or written by hand, wins over the record of its clip. Records are sorted by path;
    captions are preferred to failures.
    """
    from vidspec.runs.formats.base import format_of_suffix, make_format
    from vidspec.runs.merge import check_merged, merged_paths, render_records, write_merged
    from vidspec.runs.store.places import read_captions

    names = [*dict.fromkeys(one.strip() for one in (form or format_of_suffix(output) or "jsonl").split(","))]
    forms = [make_format(name, several=True) for name in names]
    if output == "-":
        _check_printed(forms, "--output -" if form is None else f"--format {form}")
    paths = [] if output == "-" else merged_paths(output, forms)
    for path, one in zip(paths, forms, strict=False):
        check_merged(path, one)
    found = read_captions(files)
    latest = found.one_each() if any(one.lists_files for one in forms) else found
    data, texts = found.records.data, found.records.texts
    for path, name, one in zip(paths or [Path("-")], names, forms, strict=True):
        made = make_format(name, several=True, data=data, texts=texts, folder=path.parent)
        content = render_records((latest if one.lists_files else found).records, made)
        if not paths:
            _print(content)
        elif (backup := write_merged(path, content, made)) is not None and not quiet:
            print_note(f"{path}: the earlier file, which has other captions, is now {backup}")
    if not quiet:
        shown = latest if all(one.lists_files for one in forms) else found
        more = [f"{found.duplicates} in several files"] * bool(found.duplicates)
        more += [f"{counted(found.torn, 'torn line')} left out"] * bool(found.torn)
        print_note("; ".join([f"{counted(len(shown), 'record')}, {shown.failed} failed", *more]))


def _check_printed(forms: Sequence[OutputFormat], named: str) -> None:
    """Refuse formats that standard output does not take, which an option ``named``."""
    if len(forms) > 1:
        raise UsageError(f"{named}: standard output takes one format", hint="name a file with -o FILE")
    if not forms[0].is_text:
        raise UsageError(f"{named}: needs a file", hint=f"-o FILE{forms[0].suffix}")


def _print(content: Iterable[bytes]) -> None:
    from vidspec.runs.writers import StdoutLines

    lines = StdoutLines()
    for piece in content:
        for line in piece.decode().removesuffix("\n").split("\n") if piece else ():
            lines.write(line)
