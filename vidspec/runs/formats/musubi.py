"""Captions as JSONL for musubi-tuner: ``video_path``, or ``image_path`` of a picture, and ``caption``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vidspec.runs.formats.base import ListFormat, output_formats
from vidspec.video.image import is_picture

__all__ = ["MusubiFormat"]


@output_formats.register("musubi")
class MusubiFormat(ListFormat):
    """Paths are as the user named them: the trainer reads them from the folder that it is started in."""

    def list_path(self, path: str) -> str:
        return path

    def rows(self, captions: Mapping[str, str]) -> Iterable[Mapping[str, str]]:
        for path, caption in captions.items():
            yield {"image_path" if is_picture(path) else "video_path": path, "caption": caption}
