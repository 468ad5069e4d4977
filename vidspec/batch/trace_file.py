"""One Chrome/Perfetto trace of several clips; the trace of one clip is made by ``vidspec.telling.trace``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vidspec.errors import OutputError

__all__ = ["joined", "write"]

#: Process numbers of one clip; further apart than any clip has workers.
STRIDE = 1000


def joined(traces: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """``(path, Chrome trace)`` of each clip as one trace in which each clip has its own, named processes."""
    events: list[dict[str, Any]] = []
    for number, (path, trace) in enumerate(traces):
        names: dict[int, str] = {}
        for event in trace["traceEvents"]:
            process = event.get("pid", 0)
            moved = {**event, "pid": number * STRIDE + process}
            if event.get("ph") == "M" and event.get("name") == "process_name":
                names[process] = str(event.get("args", {}).get("name", ""))
                continue
            names.setdefault(process, "")
            events.append(moved)
        for process, name in names.items():
            label = f"{path}: {name}" if name else path
            args = {"name": label}
            events.append({"ph": "M", "name": "process_name", "pid": number * STRIDE + process, "args": args})
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write(path: Path, traces: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Write ``traces`` to ``path``, at once: an earlier file is replaced whole or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(json.dumps(joined(traces)), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from None
