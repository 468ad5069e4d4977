"""Writes records, one line per clip, each flushed before the next clip starts; decides nothing about their content."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from vidspec.errors import OutputError, UsageError
from vidspec.record import Caption

__all__ = ["FileLines", "Format", "Lines", "StdoutLines", "check_output", "render"]

Format = Literal["text", "json"]


def render(caption: Caption, form: Format, *, several: bool) -> str | None:
    """A record as it is written, without the final newline; None if nothing is (a failed clip as text).

    As text one clip gives its bare caption; each of several gives one line, the path, a tab and the caption, whose
    line breaks become spaces. As JSON every clip, failed or not, gives one object on one line.
    """
    if form == "json":
        return caption.to_json()
    if caption.caption is None:
        return None
    return f"{caption.path}\t{' '.join(caption.caption.split())}" if several else caption.caption


class Lines(Protocol):
    """Takes finished lines."""

    def write(self, line: str) -> None:
        """Write ``line`` and its end, and flush."""

    def close(self, *, complete: bool) -> None:
        """No more lines come; ``complete`` says whether the run reached its end."""


class StdoutLines:
    """Standard output as it was when this was made, so that what prints later cannot mix into it."""

    def __init__(self) -> None:
        if sys.stdout is None:
            raise OutputError("standard output is closed", hint="name a file with --output")
        self._stream = sys.stdout

    def write(self, line: str) -> None:
        buffer = getattr(self._stream, "buffer", None)
        try:
            if buffer is None:
                self._stream.write(line + "\n")
            else:
                self._stream.flush()
                buffer.write(_encoded(line + "\n"))
            self._stream.flush()
        except BrokenPipeError:
            raise  # the reader has enough: not an error
        except OSError as error:
            raise OutputError(f"standard output cannot be written: {error.strerror or error}") from None

    def close(self, *, complete: bool) -> None:
        """Every line was flushed when it was written."""


class FileLines:
    """A file that is begun with the first line, so that a run that fails early leaves it as it was.

    ``replaced`` is where an earlier file of that name was moved to: ``NAME~``, as editors do, or None.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replaced: Path | None = None
        self._file: BinaryIO | None = None

    def write(self, line: str) -> None:
        try:
            file = self._opened()
            file.write(_encoded(line + "\n"))
            file.flush()
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def close(self, *, complete: bool) -> None:
        try:
            if complete:
                self._opened()  # a run without captions gives an empty file
            if self._file is not None:
                self._file.close()
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def _opened(self) -> BinaryIO:
        if self._file is None:
            path = Path(os.path.realpath(self.path))
            if path.is_file() and path.stat().st_size > 0:
                self.replaced = path.with_name(path.name + "~")
                path.replace(self.replaced)
            self._file = path.open("wb")
        return self._file


def check_output(path: Path, inputs: Iterable[str], option: str) -> None:
    """Find out before any model is loaded that ``path`` cannot be written or is one of the clips.

    Raises:
        UsageError: naming ``option``.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path}: is a folder")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{option} {path}: no permission to write there")
    if any(os.path.realpath(path) == os.path.realpath(clip) for clip in inputs):
        raise UsageError(f"{option} {path}: is one of the clips")


def _encoded(line: str) -> bytes:
    """UTF-8 of ``line``, whatever the locale; of a path that is not UTF-8 the foreign bytes become ``\\udcXX``.

    JSON escapes them the same way, so a JSON line stays valid.
    """
    return line.encode("utf-8", "backslashreplace")
