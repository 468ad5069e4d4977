"""Records on standard output or into a pipe, as lines; each line is flushed at once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, TypeAlias

from vidspec.errors import LostOutputError
from vidspec.events.record import RecordDict
from vidspec.events.wrapping import WordWrap, terminal_columns
from vidspec.files import NamedPath, encode_line
from vidspec.runs.formats.base import OutputFormat
from vidspec.runs.job import Job
from vidspec.runs.renderers import OUTPUT, Renderer, in_order
from vidspec.runs.store.journal import unwritable_error
from vidspec.runs.store.records import clip_id


class StdoutLines:
    """Writes lines to standard output as it was on construction, so that later redirections do not affect it.

    Args:
        prose: True if lines are text for people, wrapped between words on a terminal.
    """

    def __init__(self, *, prose: bool = False) -> None:
        if sys.stdout is None or getattr(sys.stdout, "closed", False):
            raise LostOutputError("standard output is closed", hint="name a file with --output")
        self._stream = sys.stdout
        self._wrap = WordWrap(terminal_columns(self._stream)) if prose and self._stream.isatty() else None
        self._written = ""  # written beginning of the next line
        #: Colours a line of prose for a terminal; None for a line that has no colours.
        self.paint: Callable[[str], str | None] = lambda line: None

    @property
    def terminal(self) -> bool:
        """True if standard output is a terminal."""
        return self._stream.isatty()

    def begin(self, beginning: str) -> None:
        """Write the beginning of the next line; each call extends it."""
        if beginning.startswith(self._written) and beginning != self._written:
            more, self._written = beginning[len(self._written) :], beginning
            self._write_text(more if self._wrap is None else self._wrap.add(more))

    def abandon(self) -> None:
        """End a begun line without its rest."""
        if self._written:
            self.write(self._written)

    def write(self, line: str) -> None:
        if self._wrap is not None and not self._written and (painted := self.paint(line)) is not None:
            self._write_text(painted + "\n")
            return
        rest = line[len(self._written) :] if line.startswith(self._written) else f"\n{line}"
        self._written = ""
        self._write_text((rest if self._wrap is None else self._wrap.add(rest) + self._wrap.end()) + "\n")

    def _write_text(self, text: str) -> None:
        buffer = getattr(self._stream, "buffer", None)
        try:
            if buffer is None:
                self._stream.write(text)
            else:
                self._stream.flush()
                buffer.write(encode_line(text))
            self._stream.flush()
        except BrokenPipeError:
            raise  # the reader closed the pipe: not an error
        except OSError as error:
            raise LostOutputError(f"standard output cannot be written: {error.strerror or error}") from None

    def close(self) -> None:
        """End a begun line; all others are flushed already."""
        self.abandon()


class FileLines:
    """Writes lines to a device or a pipe, opened with the first line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def write(self, line: str) -> None:
        try:
            if self._file is None:
                self._file = self.path.open("wb")
            self._file.write(encode_line(line + "\n"))
            self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise unwritable_error(self.path, error) from None

    def close(self) -> None:
        """Close the file; all lines are flushed already."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


Lines: TypeAlias = StdoutLines | FileLines


class Stream(Renderer):
    """Lines on standard output or into a pipe, without memory of earlier runs.

    Args:
        lines: destination of the lines.
        form: format of the lines.
    """

    def __init__(self, lines: Lines, form: OutputFormat) -> None:
        self.lines, self.form = lines, form
        self._header_written = False
        self._waiting: dict[str, list[RecordDict]] = {}  # by clip

    @property
    def place(self) -> str:
        return (
            f"into {self.lines.path}" if isinstance(self.lines, FileLines) else f"{self.form.name} to standard output"
        )

    def outputs(self, jobs: Iterable[Job]) -> list[NamedPath]:
        return [(OUTPUT, self.lines.path)] if isinstance(self.lines, FileLines) else []

    def add(self, job: Job, record: RecordDict) -> None:
        clip = clip_id(job)
        self._waiting.setdefault(clip, []).append(record)
        last: bool = record["job"].get("segment", 0) + 1 >= record["job"].get("segments", 1)
        if (texts := self.form.stream_text(self._waiting[clip], last=last)) is None:
            return
        del self._waiting[clip]
        if self.form.header is not None and not self._header_written:
            self.lines.write(self.form.header)
        self._header_written = True
        for text in texts:
            self.lines.write(text)

    def restore(self, job: Job, settings: str) -> None:
        for part in in_order(self.captions.parts(job, settings)):
            self.add(job, part.record())

    def finish(self, *, complete: bool) -> list[str]:
        self.lines.close()
        return []
