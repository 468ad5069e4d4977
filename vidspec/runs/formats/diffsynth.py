"""Captions as JSONL for DiffSynth-Studio: ``video``, or ``image`` in a list of pictures alone, and ``prompt``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vidspec.runs.formats.base import ListFormat, output_formats
from vidspec.video.image import is_picture


@output_formats.register("diffsynth")
class DiffSynthFormat(ListFormat):
    """Its trainers of video models read ``video`` only, of pictures too; those of image models read ``image``."""

    def rows(self, captions: Mapping[str, str]) -> Iterable[Mapping[str, str]]:
        key = "image" if all(map(is_picture, captions)) else "video"
        return ({key: path, "prompt": caption} for path, caption in captions.items())
