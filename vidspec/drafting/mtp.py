"""The layer for multi-token prediction in the target's own checkpoint drafts (DeepSeek-V3, Sec. 2.2; Qwen3.5)."""

from __future__ import annotations

from vidspec.drafting.head import HeadDraft
from vidspec.registry import drafters


@drafters.register("mtp")
class MtpDraft(HeadDraft):
    """The layer continues from its own state, once for each token of a window."""

    model = "layer"
