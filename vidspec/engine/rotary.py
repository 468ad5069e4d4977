"""Rotary positions of the decoders that are not stock: the axis of each frequency, cosines and sines, the rotation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch

#: Cosines and sines of a pass, in the layout of the decoder that made them; a pair for each kind of block.
RotaryTables = tuple[torch.Tensor, ...]
#: Types of rotary frequencies that do not depend on the length of the text.
STATIC_ROPE = ("default", "linear", "llama3", "yarn")


class HeadNorms(NamedTuple):
    """Root-mean-square norms of each head's queries and keys: weights (d,), and the number below the root."""

    queries: torch.Tensor
    keys: torch.Tensor
    eps: float


class RotaryModule(Protocol):
    """The rotary embedding module of a stock language model."""

    @property
    def inv_freq(self) -> torch.Tensor: ...


class RotaryPositions:
    """Rotary embeddings of one model, over positions with one axis, or with those of M-RoPE.

    Args:
        module: the stock rotary embedding of the model's config.
        rope: ``rope_parameters`` of the config.
        like: a weight, whose device and dtype the tables have.
        interleaved: see :func:`mrope_axes`.

    Attributes:
        axes: number of position axes.
    """

    def __init__(
        self, module: RotaryModule, rope: Mapping[str, object] | None, like: torch.Tensor, *, interleaved: bool
    ) -> None:
        inverse = module.inv_freq.float().to(like.device)
        self._frequencies = torch.cat([-inverse, inverse])
        self._amplitude = float(getattr(module, "attention_scaling", 1.0))
        self._dtype, self.axes = like.dtype, axis_count(rope)
        self._axis: torch.Tensor | None = None
        if (sections := mrope_sections(rope)) is not None:
            axis = mrope_axes(len(inverse), sections, interleaved=interleaved)
            self._axis = torch.cat([axis, axis]).to(like.device)

    def tables(self, positions: torch.Tensor) -> RotaryTables:
        """Return cosines and sines of positions (axes, R), (R, 1, d) each, for :func:`rotate`."""
        shared = self._axis is None or positions.stride(0) == 0  # text has one position for all axes
        of_each = positions[0, :, None] if shared else positions[self._axis].t()
        angles = of_each * self._frequencies
        cosine, sine = angles.cos(), angles.sin()
        if self._amplitude != 1:
            cosine, sine = cosine * self._amplitude, sine * self._amplitude
        return cosine.to(self._dtype)[:, None], sine.to(self._dtype)[:, None]


def rotate(states: torch.Tensor, tables: RotaryTables, out: torch.Tensor | None = None) -> torch.Tensor:
    """Rotate (R, n, d): the states times the cosines, plus their halves, swapped, times the sines.

    Args:
        states: queries or keys.
        tables: of :meth:`RotaryPositions.tables`, in which the first half of the sines is negative.
        out: receives the result; may be ``states``.
    """
    cosine, sine = tables
    return torch.addcmul(states * cosine, states.roll(states.shape[-1] // 2, -1), sine, out=out)


def mrope_sections(rope: Mapping[str, object] | None) -> Sequence[int] | None:
    """Return the frequencies of each axis under M-RoPE, from a config's ``rope_parameters``; None without axes."""
    sections = (rope or {}).get("mrope_section")
    return [int(size) for size in sections] if isinstance(sections, Sequence) else None


def axis_count(rope: Mapping[str, object] | None) -> int:
    """Return the number of position axes: one for each section of M-RoPE, else 1."""
    return len(mrope_sections(rope) or (0,))


def mrope_axes(count: int, sections: Sequence[int], *, interleaved: bool) -> torch.Tensor:
    """Return (count,) the position axis of each rotary frequency under M-RoPE.

    Args:
        count: number of frequencies, half the width of a head.
        sections: frequencies of each axis (time, height, width), as in a config's ``mrope_section``.
        interleaved: True for alternating axes (Qwen3-VL), False for blocks (Qwen2-VL, Qwen2.5-VL).
    """
    axis = torch.zeros(count, dtype=torch.long)
    start = sections[0]
    for which, size in enumerate(sections[1:], 1):
        if interleaved:
            axis[which : size * len(sections) : len(sections)] = which
        else:
            axis[start : start + size] = which
            start += size
    return axis
