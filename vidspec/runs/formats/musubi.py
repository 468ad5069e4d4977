"""Captions as JSONL for musubi-tuner: ``video_path``, or ``image_path`` of a picture, and ``caption``."""

from __future__ import annotations

from vidspec.runs.formats.base import ListFormat, output_formats


@output_formats.register("musubi")
class MusubiFormat(ListFormat):
    """Paths are as the user named them: the trainer reads them from the folder that it is started in."""

    video_key, picture_key = "video_path", "image_path"

    def list_path(self, path: str) -> str:
        return path
