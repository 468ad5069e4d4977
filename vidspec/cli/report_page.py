"""``vidspec report``: a page to look at a finished run with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from vidspec.cli.options import Debug, Quiet
from vidspec.cli.report import note
from vidspec.errors import UsageError

__all__ = ["report"]


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|FOLDER...", help="What --format json or jsonl wrote; of folders all such files."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.html", help="The page; an earlier one is replaced.")
    ],
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="What caption --trace wrote in the same run.")
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Draw one page of finished runs: captions, counters, speeds; of many clips a table to search and sort.

    Which token the draft wrote, and where in the frames it looked, only a run tells that is watched: caption --report.
    """
    from vidspec.display.pages.page import check_page
    from vidspec.display.pages.report import read_trace, write_finished

    check_page(output, [str(source) for source in sources], "--output")
    traces = read_trace(trace) if trace is not None else {}
    records = _records(sources)
    if not records:
        raise UsageError("there are no records to report on", hint="name what --format json or jsonl wrote")
    errors = write_finished(output, records, traces, ", ".join(str(source) for source in sources))
    if not quiet:
        for error in errors:
            note(f"note: {error}")
        note(f"{output}: {len(records)} records, {sum(one.get('error') is not None for one in records)} failed")
    return 0


def _records(sources: list[Path]) -> list[dict[str, Any]]:
    """All records, each captioning once.

    Raises:
        UsageError: a file that was named holds something else.
    """
    from vidspec.dataset.merge import merge

    lines, whole = [], []
    for source in sources:
        found = [source] if not source.is_dir() else sorted(source.rglob("*.jsonl")) + sorted(source.rglob("*.json"))
        for file in found:
            if (records := _document(file)) is not None:
                whole += records
            elif source is file or file.suffix == ".jsonl":
                lines.append(file)
    merged = merge(lines).records
    known = {_captioning(record) for record in merged}  # the journal beside a clip's own file has its record too
    return [*merged, *(record for record in whole if _captioning(record) not in known)]


def _captioning(record: dict[str, Any]) -> tuple[Any, ...]:
    job = record.get("job") or {}
    return (job.get("clip", record["path"]), job.get("settings"), job.get("segment"))


def _document(file: Path) -> list[dict[str, Any]] | None:
    """The records of one clip as ``--output-dir --format json`` writes them, on several lines; else None."""
    if file.suffix != ".json" or not file.is_file():
        return None
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    records = content if isinstance(content, list) else [content]
    fits = all(isinstance(one, dict) and {"path", "caption", "token_ids", "error"} <= one.keys() for one in records)
    return records if records and fits else None
