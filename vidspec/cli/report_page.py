"""``vidspec report``: writes an HTML page about finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vidspec.cli.options import DebugOption, QuietOption
from vidspec.cli.printed import print_note
from vidspec.errors import UsageError
from vidspec.events.tally import counted


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|FOLDER...", help="Files of --format json, jsonl, parquet or webdataset, or folders."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.html", help="The page to write; an earlier one is replaced.")
    ],
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Trace of the same run, from `caption --trace`."),
    ] = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Write one page about finished runs: captions, counters and speeds; many clips get a searchable, sortable table.

    To see which tokens the draft wrote and which parts of the frames it saw, use `vidspec caption --report`; to see two
    runs side by side, `vidspec compare`.
    """
    from vidspec.display.pages.page import check_page
    from vidspec.display.pages.report import read_trace, write_finished
    from vidspec.files import check_distinct
    from vidspec.runs.store.places import read_captions

    check_page(output, [str(source) for source in sources], "--output")
    check_distinct([("--output", output)], [("--trace", trace)])
    traces = read_trace(trace) if trace is not None else {}
    records = read_captions(sources).records
    if not records:
        raise UsageError("there are no records to report on", hint="name files written with --format json or jsonl")
    errors = write_finished(output, records, traces, ", ".join(str(source) for source in sources))
    if not quiet:
        for error in errors:
            print_note(f"note: {error}")
        print_note(f"{output}: {counted(len(records), 'record')}, {records.failed} failed")
    return 0
