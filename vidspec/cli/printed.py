"""Output of commands: results on standard output, one-line notes and errors on standard error."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, TextIO, cast

from vidspec.errors import LostOutputError
from vidspec.escaping import json_text, one_line
from vidspec.events.wrapping import terminal_columns, wrap_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer
    from rich.console import Console

#: Errors of a disk without room.
FULL = (errno.ENOSPC, errno.EDQUOT)


class _LossyFile(io.FileIO):
    """A file that drops what cannot be written: a log without room, or whose reader has gone, must not end a run."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (*FULL, errno.EPIPE, errno.EBADF):  # the last: a descriptor only for reading
                raise
            return memoryview(data).nbytes


class _ClosedOutput(io.TextIOBase):
    """Standard output that was closed before the start: whatever is printed ends the command."""

    closed = True

    def write(self, text: str, /) -> int:
        raise LostOutputError("standard output is closed")

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


def complete_streams() -> None:
    """Open closed standard streams of the process on the null device, and let standard error lose lines.

    Standard error loses them if it is full or its reader has gone. Without open streams the first file that a run opens
    would get the descriptor, and messages of libraries. A closed ``sys.stdout`` refuses what is printed.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    if sys.stdout is None:
        sys.stdout = cast("TextIO", _ClosedOutput())
    if sys.stderr is None or not sys.stderr.isatty():
        file = io.BufferedWriter(_LossyFile(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(file, errors="backslashreplace", line_buffering=True)


def print_error(message: str) -> None:
    """Print ``error: message`` on standard error, on one line."""
    print_note(f"error: {' '.join(message.split())}")


def print_note(line: str) -> None:
    """Print one line on standard error, with control characters of names and messages escaped.

    On a terminal it is wrapped between words, unless it is indented: a command to copy.
    """
    text = one_line(line)
    if sys.stderr.isatty() and not line.startswith(" "):
        text = wrap_text(text, terminal_columns(sys.stderr))
    print(text, file=sys.stderr, flush=True)


class _EventLines(io.TextIOBase):
    """Standard error of ``--progress json``: events, and every other line as the ``message`` of one.

    Args:
        stream: standard error itself.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._begun, self._lock = stream, "", RLock()

    def write(self, text: str, /) -> int:
        with self._lock:
            *lines, self._begun = re.split(r"[\r\n]", self._begun + text)
            for line in filter(str.strip, lines):
                kind, colon, message = line.partition(": ")
                named = colon and kind in ("error", "warning", "note")
                self.emit({"event": kind, "message": message} if named else {"event": "note", "message": line})
        return len(text)

    def emit(self, event: Mapping[str, object]) -> None:
        print(json_text(event), file=self._stream, flush=True)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()


@contextmanager
def events_on_stderr() -> Iterator[None]:
    """Print nothing but JSON objects on standard error within the block, libraries' messages and errors included."""
    before = sys.stderr
    sys.stderr = cast("TextIO", _EventLines(before))
    try:
        yield
    finally:
        print(file=sys.stderr)  # ends a begun line
        sys.stderr = before


def print_event(event: str, **fields: object) -> None:
    """Print an event of ``--progress json`` on standard error."""
    if isinstance(sys.stderr, _EventLines):
        sys.stderr.emit({"event": event, **fields})


@contextmanager
def printed_log(*, on: bool) -> Iterator[None]:
    """Context in which the package's log is printed as notes, with the reasons of what was chosen."""
    log, handler = logging.getLogger("vidspec"), _NoteHandler()
    before = log.level
    if on:
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


class _NoteHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_note(record.getMessage())


def print_json(content: object) -> None:
    print(json.dumps(content, ensure_ascii=False, indent=2))


def print_rows(rows: Iterable[Iterable[object]]) -> None:
    """Print rows for pipes: one line per row, cells separated by tabs."""
    print("\n".join("\t".join(map(str, row)) for row in rows))


def print_markdown(text: str) -> None:
    """Print text with Markdown tables, aligned to its width on a terminal."""
    from rich.console import Console

    from vidspec.bench.tables import aligned_markdown

    if not sys.stdout.isatty():
        print(text)
        return
    console = Console(highlight=False)
    for part in aligned_markdown(text, console.width):
        console.print(part)


def print_facts(facts: Mapping[str, object]) -> None:
    """Print the conditions of a measurement on one line."""
    print(", ".join(f"{key} {value}" for key, value in facts.items()))


def facts_table(rows: Iterable[tuple[str, str]]) -> Console:
    """Print labels and values as a table; returns the console."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(Text(label), Text(value))
    console = Console()
    console.print(table)
    return console
