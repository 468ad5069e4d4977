"""Captions as JSONL for the trainer of LTX-2: ``video``, also of a picture, and ``caption``."""

from __future__ import annotations

from vidspec.runs.formats.base import ListFormat, output_formats


@output_formats.register("ltx")
class LtxFormat(ListFormat):
    """The trainer takes its columns from the first line, and reads pictures as videos of one frame.

    It names its latents by the listed path: one that begins with ``..`` would leave their folder.
    """
