"""Merged Chrome/Perfetto trace of several clips; ``vidspec.events.trace`` makes the trace of one clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vidspec.files import FileKind

__all__ = ["TRACE", "merge_traces"]

#: Trace files, recognised by the beginning of the JSON of :func:`merge_traces`.
TRACE = FileKind("trace of vidspec", rb'\A\{"displayTimeUnit": "ms", "traceEvents": \[')

#: Process numbers reserved per clip; more than any clip has workers.
STRIDE = 1000


def merge_traces(traces: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Merge the ``(path, Chrome trace)`` of each clip into one trace with named processes per clip."""
    events: list[dict[str, Any]] = []
    for number, (path, trace) in enumerate(traces):
        names: dict[int, str] = {}
        for event in trace["traceEvents"]:
            process = event.get("pid", 0)
            renumbered = {**event, "pid": number * STRIDE + process}
            if event.get("ph") == "M" and event.get("name") == "process_name":
                names[process] = str(event.get("args", {}).get("name", ""))
                continue
            names.setdefault(process, "")
            events.append(renumbered)
        for process, name in names.items():
            label = f"{path}: {name}" if name else path
            args = {"name": label}
            events.append({"ph": "M", "name": "process_name", "pid": number * STRIDE + process, "args": args})
    return {"displayTimeUnit": "ms", "traceEvents": events}
