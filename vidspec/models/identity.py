"""Model identities, which a target and its draft compare across processes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from vidspec.errors import ModelError, ProfileError, option
from vidspec.models.base import SAME_FAMILIES
from vidspec.models.video_language_model import VideoLanguageModel

#: Family of language models without vision.
TEXT = "text"

#: Families whose models may draft for each other: the same prompts, though other numbers of visual tokens.
_RELATED_FAMILIES = {**SAME_FAMILIES, "llava_next": "llava", "gemma4_unified": "gemma4"}


@dataclass(frozen=True)
class Identity:
    """Identity of a model.

    Attributes:
        name: the name the user gave.
        family: its family.
        vocabulary: the number of ids it can emit.
        tokenizer: digest of its tokenizer's entries.
        tokenizer_name: class of its tokenizer and number of entries.
    """

    name: str
    family: str
    vocabulary: int
    tokenizer: str
    tokenizer_name: str


def model_identity(model: VideoLanguageModel) -> Identity:
    """Return the identity of a loaded model."""
    entries = model.tokenizer.get_vocab()
    text = json.dumps(sorted(entries.items()), ensure_ascii=False)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    named = f"{type(model.tokenizer).__name__} with {len(entries)} entries"
    return Identity(model.name, model.family, model.vocabulary, digest, named)


def is_related(family: str, other: str) -> bool:
    """Return True if a model of the ``other`` family may draft for ``family``, given the same tokenizer."""
    return other == TEXT or _RELATED_FAMILIES.get(family, family) == _RELATED_FAMILIES.get(other, other)


def require_vision(draft: Identity | VideoLanguageModel, *, shown: bool) -> None:
    """Refuse a draft without vision if the draft is ``shown`` the video.

    Raises:
        ModelError: the draft has no vision.
    """
    if draft.family == TEXT and shown:
        raise ModelError(
            f"{draft.name} is a language model without vision, and this profile shows its draft the video",
            hint="take --profile onsd, or a draft of the target's family",
            kind="family",
        )


def require_quantisable(target: VideoLanguageModel, precision: str) -> None:
    """Refuse a ``draft.precision`` in codes for a target that drafts for itself and cannot be copied in them.

    Raises:
        ProfileError: with the reason.
    """
    if precision in ("int8", "int4") and target.decoder.unquantisable_reason is not None:
        raise ProfileError(
            f"{option('draft.precision')} {precision}: {target.name}: {target.decoder.unquantisable_reason}; "
            "nearest valid choice: as-target"
        )


def check_identity(target: Identity, draft: Identity) -> None:
    """Refuse a draft in another process whose family, tokenizer or vocabulary differs.

    Raises:
        ModelError: names the difference.
    """
    if not is_related(target.family, draft.family):
        raise ModelError(f"target {target.name} is of family {target.family}, draft {draft.name} of {draft.family}")
    if target.tokenizer != draft.tokenizer or target.vocabulary != draft.vocabulary:
        raise tokenizer_mismatch(target, draft)


def tokenizer_mismatch(target: Identity, draft: Identity, difference: str = "") -> ModelError:
    """Return the error for a pair with different tokenizers, with the names of both."""
    return ModelError(
        f"target {target.name} and draft {draft.name} have different tokenizers: "
        f"{target.tokenizer_name}, {draft.tokenizer_name}{difference}",
        hint="take both from one family and generation",
        kind="tokenizer",
    )
