"""``vidspec report``: writes an HTML page about finished runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from vidspec.cli.options import DebugOption, QuietOption
from vidspec.cli.printed import print_note
from vidspec.errors import UsageError

__all__ = ["report"]


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|FOLDER...", help="Files written with --format json or jsonl, or folders."),
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

    Two runs over the same clips and prompts are shown side by side with differences marked.

    To see which tokens the draft wrote and which parts of the frames it saw, use `vidspec caption --report`.
    """
    from vidspec.display.pages.page import check_page
    from vidspec.display.pages.report import read_trace, write_compared, write_finished
    from vidspec.files import check_distinct

    check_page(output, [str(source) for source in sources], "--output")
    check_distinct([("--output", output)], [("--trace", trace)])
    traces = read_trace(trace) if trace is not None else {}
    if len(sources) == 2 and trace is None:
        left, right = (_records([source]) for source in sources)
        if found := write_compared(output, left, right, (str(sources[0]), str(sources[1]))):
            if not quiet:
                shared = [one for one in found if one.left and one.right]
                differ = sum(one.state == "differs" for one in shared)
                alone = len(found) - len(shared)
                print_note(f"{output}: {len(shared)} records of both runs, {differ} of them differ; {alone} of one run")
            return 0
    records = _records(sources)
    if not records:
        raise UsageError("there are no records to report on", hint="name files written with --format json or jsonl")
    errors = write_finished(output, records, traces, ", ".join(str(source) for source in sources))
    if not quiet:
        for error in errors:
            print_note(f"note: {error}")
        print_note(f"{output}: {len(records)} records, {sum(one.get('error') is not None for one in records)} failed")
    return 0


def _records(sources: list[Path]) -> list[dict[str, Any]]:
    """Read all records, each captioning once.

    Raises:
        UsageError: a named file is not one of records.
    """
    from vidspec.dataset.merge import merge_records

    lines, whole = [], []
    for source in sources:
        found = [source] if not source.is_dir() else sorted(source.rglob("*.jsonl")) + sorted(source.rglob("*.json"))
        for file in found:
            if (records := _read_document(file)) is not None:
                whole += records
            elif source is file or file.suffix == ".jsonl":
                lines.append(file)
    merged = merge_records(lines).records
    known = {_captioning_key(record) for record in merged}  # a clip's record is also in the journal next to its file
    return [*merged, *(record for record in whole if _captioning_key(record) not in known)]


def _captioning_key(record: dict[str, Any]) -> tuple[Any, ...]:
    job = record.get("job") or {}
    return (job.get("clip", record["path"]), job.get("settings"), job.get("segment"))


def _read_document(file: Path) -> list[dict[str, Any]] | None:
    """Read the records of one clip, a document written with ``--output-dir --format json``; None if it is none."""
    if file.suffix != ".json" or not file.is_file():
        return None
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    records = content if isinstance(content, list) else [content]
    fits = all(isinstance(one, dict) and {"path", "caption", "token_ids", "error"} <= one.keys() for one in records)
    return records if records and fits else None
