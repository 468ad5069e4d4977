"""The page of records that a run has left, and of its trace if there is one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vidspec._version import __version__
from vidspec.display.pages.clip import Clip
from vidspec.display.pages.folder import Folder
from vidspec.display.pages.timeline import from_chrome
from vidspec.display.pages.writing import IN_FULL, write
from vidspec.errors import UsageError, VidspecError
from vidspec.events.trace import Span
from vidspec.files import read_whole

__all__ = ["read_trace", "write_finished"]

#: Bytes of a trace; a clip's has some kilobytes.
LONGEST_TRACE = 1 << 30


def read_trace(file: Path) -> dict[str, list[list[Span]]]:
    """What ``--trace`` wrote, by path.

    Raises:
        UsageError: it cannot be read, or is something else.
    """
    content = read_whole(file, LONGEST_TRACE, f"--trace {file}")
    try:
        return from_chrome(json.loads(content))
    except (ValueError, RecursionError):
        raise UsageError(f"--trace {file}: is no trace of vidspec", hint="caption --trace FILE writes one") from None


def write_finished(
    file: Path, records: Sequence[Mapping[str, Any]], traces: Mapping[str, Sequence[Sequence[Span]]], title: str
) -> list[VidspecError]:
    """Write the page of ``records``; returns why frames could not be drawn.

    A trace belongs to a record where there are as many traces of its path as records.

    Raises:
        UsageError: a record is not as vidspec writes them.
        OutputError: it cannot be written.
    """
    try:
        folder, clips = _collected(records, traces)
        damaged = any((record.get("video") or {}).get("damage") for record in records)
        return write(file, folder, clips, title, allow_damaged=damaged)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"a record is not as vidspec {__version__} writes them: {type(error).__name__}: {error}",
            hint="report on what caption --format json or jsonl wrote",
        ) from error


def _collected(
    records: Sequence[Mapping[str, Any]], traces: Mapping[str, Sequence[Sequence[Span]]]
) -> tuple[Folder, list[Clip]]:
    """All records, and the first of them with their traces."""
    folder = Folder()
    clips: list[Clip] = []
    captioned = Counter(record["path"] for record in records if record.get("error") is None)
    met: Counter[str] = Counter()
    for record in records:
        number, path = folder.add(record), record["path"]
        if record.get("error") is not None and len(records) > 1:
            continue
        mine = traces.get(path, ())
        spans = mine[met[path]] if len(mine) == captioned[path] else ()
        met[path] += 1
        if len(clips) < IN_FULL:
            clips.append(Clip(record, spans=spans, number=number))
    return folder, clips
