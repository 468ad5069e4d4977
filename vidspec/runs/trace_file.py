"""Merged Chrome/Perfetto trace of several clips; ``vidspec.events.trace`` makes the trace of one clip."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidspec.events.observer import ClipPart, RunObserver
from vidspec.events.record import Caption
from vidspec.events.tally import Tally
from vidspec.files import FileKind, behind_link, write_whole

if TYPE_CHECKING:
    from vidspec.events.trace import Trace

__all__ = ["TRACE", "TraceCollector", "merge_traces"]

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


class TraceCollector(RunObserver):
    """Collects the traces of clips for one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._traces: list[tuple[str, Trace]] = []
        self._ended = False

    def result(self, caption: Caption, error: Exception | None, part: ClipPart, tally: Tally) -> None:
        if caption.trace is not None:
            self._traces.append((caption.path, caption.trace))

    def ended(self, tally: Tally) -> None:
        self._ended = True

    def write(self) -> None:
        """Write the file atomically; nothing if no clip was captioned."""
        if not self._traces and not self._ended:
            return
        from vidspec.events.trace import to_chrome

        trace = merge_traces([(path, to_chrome(events)) for path, events in self._traces])
        write_whole(behind_link(self.path), json.dumps(trace))
