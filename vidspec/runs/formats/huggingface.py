"""Captions as ``metadata.jsonl`` in a folder of clips, as Hugging Face's ``datasets`` and finetrainers read it."""

from __future__ import annotations

import os

from vidspec.errors import UsageError, option
from vidspec.runs.formats.base import ListFormat, output_formats


@output_formats.register("huggingface")
class HuggingFaceFormat(ListFormat):
    """``file_name``, which becomes the column ``video`` or ``image``, and ``caption``."""

    run_name = "metadata"
    video_key = picture_key = "file_name"

    def check_clip(self, path: str, shard: str | None) -> None:
        super().check_clip(path, shard)
        if os.path.isabs(self.list_path(path)):
            message = f"{option('format', self.name)} lists clips below the folder of its own file only, not {path}"
            raise UsageError(
                message, hint=f"give {option('output', 'FOLDER/metadata.jsonl')} with the folder of the clips"
            )
