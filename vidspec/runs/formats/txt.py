"""Captions as text, in a file beside each clip."""

from __future__ import annotations

from vidspec.runs.formats.base import output_formats
from vidspec.runs.formats.text import TextFormat

__all__ = ["TextFileFormat"]


@output_formats.register("txt")
class TextFileFormat(TextFormat):
    """The lines of :class:`TextFormat`."""

    clip_files = "always"
