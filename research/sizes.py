"""Figures of published checkpoints' configs, and derived ones; no torch.

Only the matrices of a vision tower are counted; norms, biases and position embeddings are about a thousandth.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Visual tokens of a frame (of Qwen2.5-VL of a pair of frames).
PER_FRAME = 14**2


@dataclass(frozen=True)
class Size:
    """Shape of a Qwen2 or Qwen2.5 decoder, from its config."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    tied: bool = False

    @property
    def width(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def kv_per_token(self) -> int:
        """Elements of the KV cache per token."""
        return 2 * self.layers * self.kv_heads * self.width

    @property
    def blocks(self) -> int:
        """Parameters without embedding and head, including the last norm."""
        entries = 2 * self.kv_heads * self.width
        attention = self.hidden * (self.hidden + entries) + (self.hidden + entries) + self.hidden**2
        return self.layers * (attention + 3 * self.hidden * self.inner + 2 * self.hidden) + self.hidden

    @property
    def head(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def read(self) -> int:
        """Parameters that a decoding pass reads: all but the embedding."""
        return self.blocks + self.head

    @property
    def parameters(self) -> int:
        return self.read + (0 if self.tied else self.head)

    def prefill_flops(self, tokens: float) -> float:
        """Return the operations of a prefill: two per parameter and token, causal attention, one head."""
        return 2 * (self.blocks * tokens + self.layers * self.hidden * tokens**2 + self.head)


@dataclass(frozen=True)
class Tower:
    """A vision tower and its projector, over one frame (a pair of frames for Qwen2.5-VL).

    Attributes:
        layers, hidden, inner: of its blocks.
        matrices: of a block's feed-forward part.
        inputs: elements of a patch.
        patches: of a frame.
        window: patches per attention window, in blocks with windowed attention.
        whole: number of blocks with full attention.
        merged: patches joined before the projector.
        middle, out: widths of the projector's two layers.
    """

    layers: int
    hidden: int
    inner: int
    matrices: int
    inputs: int
    patches: int
    window: int
    whole: int
    merged: int
    middle: int
    out: int

    @property
    def blocks(self) -> int:
        each = 4 * self.hidden**2 + self.matrices * self.hidden * self.inner
        return self.layers * each + self.inputs * self.hidden

    @property
    def behind(self) -> int:
        return self.merged * self.hidden * self.middle + self.middle * self.out

    @property
    def parameters(self) -> int:
        return self.blocks + self.behind

    @property
    def flops(self) -> float:
        """Operations per frame: two per parameter and patch, and attention within windows and frames."""
        seen = (self.layers - self.whole) * self.window + self.whole * self.patches
        per_patch = 2 * self.blocks + 4 * seen * self.hidden + 2 * self.behind / self.merged
        return self.patches * per_patch


@dataclass(frozen=True)
class Model:
    """A published checkpoint: its language model and its tower."""

    language: Size
    tower: Tower

    @property
    def parameters(self) -> int:
        return self.language.parameters + self.tower.parameters


#: Qwen2.5, also the language models of Qwen2.5-VL (which has no 0.5B), from their configs.
SIZES = {
    "0.5B": Size(24, 896, 14, 2, 4864, 151936, tied=True),
    "3B": Size(36, 2048, 16, 2, 11008, 151936, tied=True),
    "7B": Size(28, 3584, 28, 4, 18944, 152064),
    "32B": Size(64, 5120, 40, 8, 27648, 152064),
    "72B": Size(80, 8192, 64, 8, 29568, 152064),
}


def _siglip(out: int) -> Tower:
    """Return SigLIP-SO400M as in LLaVA-OneVision; a frame's 27 x 27 patches are pooled to 14 x 14 after it."""
    return Tower(26, 1152, 4304, 2, 3 * 14**2, 27**2, 27**2, 26, 1, out, out)


def _qwen(inner: int, out: int) -> Tower:
    """Return Qwen2.5-VL's tower, over frames that give 14 x 14 visual tokens."""
    return Tower(32, 1280, inner, 3, 2 * 3 * 14**2, 28**2, 8**2, 4, 4, 4 * 1280, out)


#: By hub id.
MODELS = {
    "llava-hf/llava-onevision-qwen2-0.5b-ov-hf": Model(Size(24, 896, 14, 2, 4864, 152000, tied=True), _siglip(896)),
    "llava-hf/llava-onevision-qwen2-7b-ov-hf": Model(Size(28, 3584, 28, 4, 18944, 152128), _siglip(3584)),
    "Qwen/Qwen2.5-VL-3B-Instruct": Model(SIZES["3B"], _qwen(3420, 2048)),
    "Qwen/Qwen2.5-VL-7B-Instruct": Model(SIZES["7B"], _qwen(3420, 3584)),
    "Qwen/Qwen2.5-VL-32B-Instruct": Model(SIZES["32B"], _qwen(3456, 5120)),
}
