"""Machine-readable log of a run as JSON lines: ``start``, one ``clip`` per result, and ``end``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from vidspec.errors import UsageError
from vidspec.escaping import json_text
from vidspec.events.observer import ClipPart, RunObserver
from vidspec.events.record import Caption
from vidspec.events.tally import Tally
from vidspec.files import FileKind, check_output, encode_line

__all__ = ["LOG", "LogFile", "check_log", "clip_facts"]

#: Log files, recognised by the first fields of a line.
LOG = FileKind("log of vidspec", rb'\A\s*\{"time": "[-+:.T\d]+", "event": "')


def check_log(path: Path, inputs: Iterable[str]) -> None:
    """Check before any model is loaded that ``path`` can be appended to: a log, a device or a pipe.

    Raises:
        UsageError: naming ``--log-file``.
    """
    loses_nothing = path.exists() and not path.is_file()
    check_output(path, inputs, "--log-file", None if loses_nothing else LOG)


def clip_facts(caption: Caption, part: ClipPart) -> dict[str, object]:
    """Return what an event says of a finished clip, or of a segment or question of one."""
    return {
        "path": caption.path,
        **part._asdict(),
        "tokens": len(caption.token_ids),
        "timings": caption.timings,
        "error": caption.error,
    }


class LogFile(RunObserver):
    """Appends events to the file at ``path``; every line has ``time`` (UTC) and ``event``.

    A line that cannot be written is dropped and the run continues: captions matter more than the log.

    Args:
        path: the file.
        warn: called with a warning at the first failed write.

    Raises:
        UsageError: the file cannot be opened.
    """

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        self.path, self.warn = path, warn
        self._warned = self._torn = False
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"--log-file {path}: cannot be written: {error.strerror or error}") from None

    def start(self, tally: Tally, profile: str, options: Mapping[str, object]) -> None:
        """Log the start of the run."""
        self._write("start", profile=profile, options=options, **tally.counts())

    def result(self, caption: Caption, error: Exception | None, part: ClipPart, tally: Tally) -> None:
        self._write("clip", **clip_facts(caption, part), **tally.counts())

    def ended(self, tally: Tally) -> None:
        self._write("end", kinds=dict(tally.kinds), stopped=tally.stopped, **tally.counts())

    def close(self) -> None:
        self._file.close()

    def _write(self, event: str, **fields: object) -> None:
        record = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
        line = encode_line("\n" * self._torn + json_text(record, default=str) + "\n")
        written, why = 0, "the disk is full"
        try:
            written = self._file.write(line) or 0
        except OSError as error:
            why = error.strerror or str(error)
        if written < len(line) and not self._warned:
            self._warned = True
            self.warn(f"warning: --log-file {self.path}: cannot be written: {why}; the run goes on, lines are missing")
        self._torn = written < len(line) and (self._torn or written > 0)
