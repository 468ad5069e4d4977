"""Read the processor settings and the chat template of a checkpoint."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from vidspec.engine.stock_types import StockTokenizer
from vidspec.errors import ModelError
from vidspec.files import decode_text
from vidspec.models.weight_files import optional_file

#: Keys of the processor itself that say which tokens stand around frames (Molmo 2).
FRAME_MARKS = ("use_frame_special_tokens", "video_use_col_tokens")


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
    marks = {key: combined[key] for key in FRAME_MARKS if key in combined}
    return {**config, **marks, **({"feature_extractor": audio} if audio else {})}


class ChatTemplate(NamedTuple):
    """A chat template, the file that it is from, and another file whose template is not read."""

    text: str
    origin: str
    unread: str | None = None


def read_template(source: str) -> ChatTemplate | None:
    """Return the processor's chat template; None if there is none.

    The order is that of ``ProcessorMixin.get_processor_dict`` in transformers 5.24, which prefers the older
    ``chat_template.json`` to ``chat_template.jinja``.
    """
    config = json.loads(read_text(source, "processor_config.json") or "{}")
    jinja, older = (read_text(source, name) for name in ("chat_template.jinja", "chat_template.json"))
    found = (
        [ChatTemplate(text, "processor_config.json")] if isinstance(text := config.get("chat_template"), str) else []
    )
    found += [ChatTemplate(str(json.loads(older)["chat_template"]), "chat_template.json")] if older else []
    found += [ChatTemplate(jinja, "chat_template.jinja")] if jinja else []
    others = [one.origin for one in found[1:] if one.text != found[0].text]
    return found[0]._replace(unread=others[0] if others else None) if found else None


def tokenizer_template(tokenizer: StockTokenizer) -> ChatTemplate | None:
    """Return the chat template in the tokenizer's config, the default one of several; None if there is none."""
    known = getattr(tokenizer, "chat_template", None)
    text = known.get("default") if isinstance(known, dict) else known
    return ChatTemplate(text, "tokenizer_config.json") if text else None
