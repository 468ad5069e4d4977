"""The contract of what runs a language model's blocks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch

from vidspec.engine.graphs import ReplayedPasses
from vidspec.engine.slab import Slab

__all__ = [
    "AttendFunction",
    "Decoder",
    "LanguageModel",
    "RotaryTables",
    "mrope_axes",
    "sliding_windows",
    "with_own_slab",
]

#: Cosines and sines of a pass, as the decoder that made them takes them; a pair for each kind of block.
RotaryTables = tuple[torch.Tensor, ...]
#: Keeps a layer's rotated keys and values and attends, see :class:`~vidspec.engine.attention.PassAttention`.
AttendFunction = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]


class Decoder(Protocol):
    """The blocks of one language model, and the slab of its sequences.

    Attributes:
        name: ``fused`` or ``stock``.
        why: why it is this one, in a few words.
        depth: number of blocks.
        scaling: of attention scores.
        axes: of rotary positions: 1, or 3 under M-RoPE.
        windows: of each block how many places back its rows see; None where all blocks see everything.
        mutual: whether visual tokens next to each other see each other, both ways, in blocks with such a limit.
        prunable: whether rows of a prompt can be dropped between two blocks.
        cached: the blocks that keep keys and values, in order, where others keep a state; None where all do.
        state_bytes: that a sequence takes at most beside its keys and values: the states of the other blocks.
        packed_bytes: of weights that are held packed or as codes, beside the model's parameters.
        only_bytes: of those that are no second copies.
        numbers: in the weights of its blocks' linear layers, experts left out.
        graphs: its passes of few tokens as a GPU replays them; None where it cannot.
        eager: why a GPU would not replay them; None if it does.
    """

    name: str
    why: str
    depth: int
    axes: int
    windows: tuple[int | None, ...] | None
    mutual: bool
    prunable: bool
    cached: tuple[int, ...] | None
    state_bytes: int
    graphs: ReplayedPasses | None
    eager: str | None

    @property
    def slab(self) -> Slab: ...

    @property
    def packed_bytes(self) -> int: ...

    @property
    def only_bytes(self) -> int: ...

    @property
    def numbers(self) -> int: ...

    @property
    def scaling(self) -> float: ...

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """(R, hidden) of token ids (R,)."""
        ...

    def rotation(self, positions: torch.Tensor) -> RotaryTables:
        """Of positions (axes, R)."""
        ...

    def block(self, index: int, rows: torch.Tensor, rotation: RotaryTables, attention: AttendFunction) -> torch.Tensor:
        """What enters the next block, (R, hidden), of what enters this one."""
        ...

    def norm(self, rows: torch.Tensor) -> torch.Tensor:
        """The final norm."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(R, heads of the vocabulary) behind the final norm."""
        ...


D = TypeVar("D", bound=Decoder)


class LanguageModel(Protocol):
    """All that the engine needs to know of a model.

    Attributes:
        vocabulary: logits are sliced to it.
    """

    vocabulary: int

    @property
    def device(self) -> torch.device: ...

    @property
    def decoder(self) -> Decoder: ...


def with_own_slab(decoder: D) -> D:
    """The same blocks and weights with a slab of its own, for passes in another thread than those of ``decoder``.

    On a GPU its passes are not replayed: what is captured writes to tensors of its own.
    """
    other = copy.copy(decoder)
    vars(other).pop("slab", None)
    other.graphs, other.eager = None, "it works in a thread of its own"
    return other


def mrope_axes(count: int, sections: Sequence[int], *, interleaved: bool) -> torch.Tensor:
    """(count,) the axis whose position each rotary frequency takes under M-RoPE.

    Args:
        count: of frequencies, half as many as a head is wide.
        sections: frequencies of each axis (time, height, width), as a config's ``mrope_section`` has them.
        interleaved: in turns (Qwen3-VL), or in blocks (Qwen2-VL, Qwen2.5-VL).
    """
    axis = torch.zeros(count, dtype=torch.long)
    start = sections[0]
    for which in (1, 2):
        if interleaved:
            axis[which : sections[which] * 3 : 3] = which
        else:
            axis[start : start + sections[which]] = which
            start += sections[which]
    return axis


def sliding_windows(config: Any) -> tuple[int | None, ...] | None:
    """:attr:`Decoder.windows` of a language model's config."""
    size, depth = getattr(config, "sliding_window", None), int(config.num_hidden_layers)
    if size is None or getattr(config, "use_sliding_window", True) is False:
        return None
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * depth
    windows = tuple(int(size) if kind == "sliding_attention" else None for kind in kinds)
    return windows if any(windows) else None
