"""Captions as JSONL for musubi-tuner: ``video_path``, or ``image_path`` of a picture, and ``caption``."""

from __future__ import annotations

import os
from collections.abc import Iterable

from vidspec.escaping import json_text
from vidspec.events.record import RecordDict
from vidspec.files import encode_line
from vidspec.runs.formats.base import RunFormat, marked_caption, output_formats
from vidspec.video.image import IMAGES

__all__ = ["MusubiFormat"]


@output_formats.register("musubi")
class MusubiFormat(RunFormat):
    """A line for each clip with a caption; those of its segments or answers are joined."""

    suffix = ".jsonl"

    def content(self, records: Iterable[RecordDict]) -> bytes:
        captions: dict[str, str] = {}
        for record in records:
            if record["caption"] is not None:
                words = f"{captions.get(record['path'], '')} {marked_caption(record)}".split()
                captions[record["path"]] = " ".join(words)
        lines = (json_text({_path_key(path): path, "caption": text}) + "\n" for path, text in captions.items())
        return encode_line("".join(lines))


def _path_key(path: str) -> str:
    return "image_path" if os.path.splitext(path)[1].lower().lstrip(".") in IMAGES else "video_path"
