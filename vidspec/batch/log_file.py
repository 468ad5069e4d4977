"""The log of a run as JSON lines, for machines: ``start``, one ``clip`` for each outcome, and ``end``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from vidspec.batch.bulk import Listener, Tally
from vidspec.batch.journal import encoded
from vidspec.batch.work import Outcome
from vidspec.errors import OutputError, UsageError
from vidspec.escaping import json_text

__all__ = ["LogFile"]


class LogFile(Listener):
    """Adds to the file at ``path``; every line has ``time`` (UTC) and ``event``.

    Raises:
        UsageError: it cannot be opened.
        OutputError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise UsageError(f"--log-file {path}: cannot be written: {error.strerror or error}") from None

    def start(self, tally: Tally, profile: str, options: Mapping[str, Any]) -> None:
        """The run begins."""
        self._write("start", profile=profile, options=options, **_counts(tally))

    def outcome(self, outcome: Outcome, tally: Tally) -> None:
        caption, work = outcome.caption, outcome.work
        self._write(
            "clip",
            path=caption.path,
            start=work.start,
            end=work.end,
            segment=work.segment,
            segments=work.segments,
            tokens=len(caption.token_ids),
            timings=caption.timings,
            error=caption.error,
            **_counts(tally),
        )

    def ended(self, tally: Tally) -> None:
        self._write("end", kinds=dict(tally.kinds), stopped=tally.stopped, **_counts(tally))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: str, **fields: Any) -> None:
        record = {"time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"), "event": event, **fields}
        try:
            self._file.write(encoded(json_text(record, default=str) + "\n"))
            self._file.flush()
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror or error}") from None


def _counts(tally: Tally) -> dict[str, Any]:
    return {
        "total": tally.total,
        "earlier": tally.earlier + tally.earlier_failed + tally.reused,
        "captioned": tally.captioned,
        "failed": tally.failed,
        "seconds": round(tally.seconds, 3),
        "clips_per_s": round(tally.clips_per_s, 4),
        "tokens_per_s": round(tally.tokens_per_s, 2),
        "eta_s": None if tally.eta is None else round(tally.eta, 1),
    }
