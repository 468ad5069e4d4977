"""Line writers for standard output and files; each line is flushed at once. Content is up to the caller."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import BinaryIO, TypeAlias

from vidspec.dataset.journal import unwritable_error
from vidspec.errors import OutputError
from vidspec.events.wrapping import WordWrap, terminal_columns
from vidspec.files import encode_line

__all__ = ["FileLines", "Lines", "StdoutLines"]


class StdoutLines:
    """Writes lines to standard output as it was on construction, so that later redirections do not affect it.

    Args:
        prose: True if lines are text for people, wrapped between words on a terminal.
    """

    def __init__(self, *, prose: bool = False) -> None:
        if sys.stdout is None:
            raise OutputError("standard output is closed", hint="name a file with --output")
        self._stream = sys.stdout
        self._wrap = WordWrap(terminal_columns(self._stream)) if prose and self._stream.isatty() else None
        self._written = ""  # written beginning of the next line

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
            raise OutputError(f"standard output cannot be written: {error.strerror or error}") from None

    def close(self) -> None:
        """End a begun line; all others are flushed already."""
        self.abandon()


class FileLines:
    """Writes lines to a device or a pipe, opened with the first line; ``vidspec.dataset.outputs`` has regular files."""

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
