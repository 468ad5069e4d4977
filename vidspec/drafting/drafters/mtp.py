"""Drafting by the multi-token prediction layer of the target's checkpoint (DeepSeek-V3, Sec. 2.2; Qwen3.5)."""

from __future__ import annotations

from vidspec.drafting.base import drafters
from vidspec.drafting.head import HeadDraft


@drafters.register("mtp")
class MtpDraft(HeadDraft):
    """A chain of the MTP layer, which continues from its own state for each token of a window."""

    model = "layer"
