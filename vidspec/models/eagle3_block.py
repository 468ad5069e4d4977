"""The one block of an EAGLE-3 head as the engine runs it: rows of an embedding and a state, no token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.nn import functional as F

from vidspec.engine.decoder import Attending, Rotation, windows_of
from vidspec.engine.slab import Slab
from vidspec.models.head import HeadDecoder

__all__ = ["PROJECTIONS", "Eagle3Decoder"]

#: Of its attention, in the order in which they are used.
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


class Eagle3Decoder(HeadDecoder):
    """The block of a head behind :class:`~vidspec.engine.decoder.Decoder`; what enters it is twice as wide.

    Args:
        config: a ``LlamaConfig`` with what the head's own has.
        tensors: by name, on their device and in their dtype.
        budget: bytes of the slab.
    """

    def __init__(self, config: Any, tensors: Mapping[str, torch.Tensor], budget: int | None = None) -> None:
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        self._tensors, self._budget = tensors, budget
        self.hidden, self._eps = int(config.hidden_size), float(config.rms_norm_eps)
        self.heads, self.kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.width = int(config.head_dim)
        self.scaling, self.windows = self.width**-0.5, windows_of(config)
        #: Whether what is added to the block's output is the state behind its norm.
        self._norm_first = bool(getattr(config, "norm_before_residual", False))
        rope = config.rope_parameters
        rotary = LlamaRotaryEmbedding(config)
        self._amplitude = float(getattr(rotary, "attention_scaling", 1.0))
        self._frequencies = rotary.inv_freq.float().to(self._weight.device)
        sections = rope.get("mrope_section")
        self.axes = 1 if sections is None else 3
        axis = _axis_of_each(self.width // 2, sections, bool(rope.get("mrope_interleaved")))
        self._axis = axis.to(self._weight.device)

    @property
    def _weight(self) -> torch.Tensor:
        return self._tensors["lm_head.weight"]

    @cached_property
    def slab(self) -> Slab:
        return Slab(self.kv_heads, self.width, self._weight.dtype, [self._weight.device], self._budget)

    def rotation(self, positions: torch.Tensor) -> Rotation:
        """(R, 1, d) each."""
        angles = positions[self._axis].t() * self._frequencies
        both = torch.cat([angles, angles], dim=-1)[:, None]
        dtype = self._weight.dtype
        return (both.cos() * self._amplitude).to(dtype), (both.sin() * self._amplitude).to(dtype)

    def block(self, index: int, rows: torch.Tensor, rotation: Rotation, attention: Attending) -> torch.Tensor:
        """(R, hidden) of (R, 2 * hidden): an embedding and a state."""
        embedding, state = rows.split(self.hidden, dim=1)
        normed = self._normed("midlayer.hidden_norm", state)
        both = torch.cat([self._normed("midlayer.input_layernorm", embedding), normed], dim=1)
        count, sizes = len(rows), (self.heads, self.kv_heads, self.kv_heads)
        query, key, value = (
            self._linear(f"midlayer.self_attn.{name}", both).view(count, heads, self.width)
            for name, heads in zip(PROJECTIONS, sizes, strict=False)
        )
        entries = torch.stack([_turned(key, rotation), value], dim=1)
        seen = attention(index, _turned(query, rotation), entries)
        state = (normed if self._norm_first else state) + self._linear("midlayer.self_attn.o_proj", seen)
        inner = self._normed("midlayer.post_attention_layernorm", state)
        gate = F.silu(self._linear("midlayer.mlp.gate_proj", inner))
        return state + self._linear("midlayer.mlp.down_proj", gate * self._linear("midlayer.mlp.up_proj", inner))

    def norm(self, rows: torch.Tensor) -> torch.Tensor:
        return self._normed("norm", rows)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self._weight)

    def joined(self, states: torch.Tensor) -> torch.Tensor:
        """(n, hidden) of the target's states side by side (n, blocks * target's hidden)."""
        return self._linear("fc", states)

    def _linear(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(rows, self._tensors[f"{name}.weight"], self._tensors.get(f"{name}.bias"))

    def _normed(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(rows, rows.shape[-1:], self._tensors[f"{name}.weight"], self._eps)


def _axis_of_each(count: int, sections: Sequence[int] | None, interleaved: bool) -> torch.Tensor:
    """(count,) the axis whose position each frequency takes: blocks of them (Qwen2.5-VL), or in turns (Qwen3-VL)."""
    axis = torch.zeros(count, dtype=torch.long)
    if sections is None:
        return axis
    start = sections[0]
    for which in (1, 2):
        if interleaved:
            axis[which : sections[which] * 3 : 3] = which
        else:
            axis[start : start + sections[which]] = which
            start += sections[which]
    return axis


def _turned(states: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """(R, n, d) rotated."""
    cosine, sine = rotation
    first, second = states.chunk(2, dim=-1)
    return states * cosine + torch.cat([-second, first], dim=-1) * sine
