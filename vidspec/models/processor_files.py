"""Read the processor settings and the chat template of a checkpoint."""

from __future__ import annotations

import json
from typing import Any

from vidspec.errors import ModelError
from vidspec.files import decode_text
from vidspec.models.weight_files import optional_file

__all__ = ["read_processor", "read_template", "read_text"]


def read_text(source: str, name: str) -> str | None:
    """Return the text of a file of a hub id or folder; None if there is no such file."""
    file = optional_file(source, name)
    return None if file is None else decode_text(file.read_bytes())


def read_processor(name: str, source: str) -> dict[str, Any]:
    """Read the config of the video processor, or else of the image processor.

    The search order is that of transformers 5: a section of the processor's config, then a file of its own. The key
    ``feature_extractor`` holds the audio feature extractor's config, if there is one.

    Args:
        name: the model name the user gave.
        source: its hub id or folder.

    Raises:
        ModelError: there is none, and default sizes and normalisation would differ from training.
    """
    combined, shared = (
        json.loads(read_text(source, f"{kind}_config.json") or "{}") for kind in ("processor", "preprocessor")
    )
    config = combined.get("video_processor") or combined.get("image_processor")
    if not config:
        config = json.loads(read_text(source, "video_preprocessor_config.json") or "{}") or shared
    if not config:
        raise ModelError(
            f"{name}: has neither preprocessor_config.json nor video_preprocessor_config.json, which say how frames "
            "are resized and normalised",
            hint="copy them from the model that it was made from",
            kind="unreadable",
        )
    audio = combined.get("feature_extractor") or (shared if "feature_extractor_type" in shared else None)
    return {**config, "feature_extractor": audio} if audio else dict(config)


def read_template(source: str) -> str | None:
    """Return the chat template; None if the checkpoint has none."""
    if text := read_text(source, "chat_template.jinja"):
        return text
    if text := read_text(source, "chat_template.json"):
        return str(json.loads(text)["chat_template"])
    return None
