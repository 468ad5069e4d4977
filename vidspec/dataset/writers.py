"""Where lines go, each flushed at once; decides nothing about their content."""

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
    """Standard output as it was when this was made, so that what prints later cannot mix into it.

    Args:
        prose: whether lines are text for people, which a terminal shows broken between words.
    """

    def __init__(self, *, prose: bool = False) -> None:
        if sys.stdout is None:
            raise OutputError("standard output is closed", hint="name a file with --output")
        self._stream = sys.stdout
        self._wrap = WordWrap(terminal_columns(self._stream)) if prose and self._stream.isatty() else None
        self._begun = ""  # what has been written of the next line

    @property
    def terminal(self) -> bool:
        """Whether it is one."""
        return self._stream.isatty()

    def begin(self, beginning: str) -> None:
        """Write the beginning of the next line; with each call more of it."""
        if beginning.startswith(self._begun) and beginning != self._begun:
            more, self._begun = beginning[len(self._begun) :], beginning
            self._put(more if self._wrap is None else self._wrap.add(more))

    def abandon(self) -> None:
        """End a line that was begun and whose rest does not come."""
        if self._begun:
            self.write(self._begun)

    def write(self, line: str) -> None:
        rest = line[len(self._begun) :] if line.startswith(self._begun) else f"\n{line}"
        self._begun = ""
        self._put((rest if self._wrap is None else self._wrap.add(rest) + self._wrap.end()) + "\n")

    def _put(self, text: str) -> None:
        buffer = getattr(self._stream, "buffer", None)
        try:
            if buffer is None:
                self._stream.write(text)
            else:
                self._stream.flush()
                buffer.write(encode_line(text))
            self._stream.flush()
        except BrokenPipeError:
            raise  # the reader has enough: not an error
        except OSError as error:
            raise OutputError(f"standard output cannot be written: {error.strerror or error}") from None

    def close(self) -> None:
        """Every line was flushed when it was written."""
        self.abandon()


class FileLines:
    """A device or a pipe, opened with the first line; a regular file is the business of ``vidspec.dataset.outputs``."""

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
        """Every line was flushed when it was written."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


Lines: TypeAlias = StdoutLines | FileLines
