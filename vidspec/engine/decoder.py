"""The decoder protocol: the interface of a language model's blocks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch

from vidspec.engine.graphs.passes import ReplayedPasses
from vidspec.engine.head_states import StateInputs
from vidspec.engine.matrix import Matrix
from vidspec.engine.rotary import RotaryTables
from vidspec.engine.slab import Slab
from vidspec.engine.stock_types import StockConfig

#: Stores a layer's rotated keys and values and attends, see :class:`~vidspec.engine.attention.PassAttention`.
AttendFunction = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]


class Decoder(Protocol):
    """The blocks of one language model and the slab of its sequences.

    Attributes:
        name: ``fused`` or ``stock``.
        why: reason for this decoder, in a few words.
        depth: number of blocks.
        scaling: factor of attention scores.
        axes: axes of rotary positions: 1, or one for each section of M-RoPE.
        windows: sliding window of each block, in places; None if all blocks see everything.
        mutual: True if adjacent visual tokens see each other, both ways, in sliding-window blocks.
        cached: the blocks with keys and values, in order, where others keep a state; None if all have them.
        state_bytes: most bytes of a sequence's states in the other blocks, in addition to its keys and values.
        matrices: of its weights that are not in stock layers.
        numbers: weights in the blocks' linear layers, experts left out.
        graphs: replayed passes of few tokens on a GPU; None if it cannot replay them.
        eager: reason why a GPU does not replay passes; None if it does.
        state_inputs: of a head, whose rows are tokens joined with states; None of a language model.
        reads_context: True of a block head, whose earlier entries come from states of the target.
        both_ways: of a block head, the blocks in which all tokens of a sequence in a pass see each other.
        skips_rows: True if the last block returns only the rows that :meth:`PassAttention.needed` names.
    """

    name: str
    why: str
    depth: int
    axes: int
    windows: tuple[int | None, ...] | None
    mutual: bool
    cached: tuple[int, ...] | None
    state_bytes: int
    graphs: ReplayedPasses | None
    eager: str | None
    state_inputs: StateInputs | None
    reads_context: bool
    both_ways: frozenset[int]
    skips_rows: bool

    @property
    def slab(self) -> Slab: ...

    @property
    def matrices(self) -> Sequence[Matrix]: ...

    @property
    def numbers(self) -> int: ...

    @property
    def scaling(self) -> float: ...

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return embeddings (R, hidden) of token ids (R,)."""
        ...

    def rotation(self, positions: torch.Tensor) -> RotaryTables:
        """Return the rotary tables of positions (axes, R)."""
        ...

    def block(self, index: int, rows: torch.Tensor, rotation: RotaryTables, attention: AttendFunction) -> torch.Tensor:
        """Return the output of one block, (R, hidden), for its input ``rows``."""
        ...

    def norm(self, rows: torch.Tensor) -> torch.Tensor:
        """Apply the final norm."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits (R, heads of the vocabulary) of states after the final norm."""
        ...


class ReplayableDecoder(Decoder, Protocol):
    """A decoder whose passes of few tokens a GPU may replay.

    Attributes:
        device: of its weights.
        width: of an attention head.
        hidden: of a state.
        logit_width: logits of a row, padding of the vocabulary included.
        pass_width: numbers of a row while a block computes, at most.
    """

    width: int
    hidden: int
    logit_width: int
    pass_width: int
    device: torch.device


class DecoderDefaults:
    """Attributes as most decoders have them, see :class:`Decoder`."""

    mutual = False
    cached: tuple[int, ...] | None = None
    state_bytes = 0
    graphs: ReplayedPasses | None = None
    eager: str | None = None
    state_inputs: StateInputs | None = None
    reads_context = False
    both_ways: frozenset[int] = frozenset()
    skips_rows = False


D = TypeVar("D", bound=Decoder)


class LanguageModel(Protocol):
    """The engine's view of a model.

    Attributes:
        name: for messages.
        vocabulary: number of logits to keep.
        known_ids: number of ids with an embedding.
    """

    name: str
    vocabulary: int

    @property
    def known_ids(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def decoder(self) -> Decoder: ...


def with_own_slab(decoder: D) -> D:
    """Return the same blocks and weights with a slab of their own, for passes in a thread other than ``decoder``'s.

    On a GPU its passes are not replayed: captured passes write to tensors of their own.
    """
    other = copy.copy(decoder)
    vars(other).pop("slab", None)
    other.graphs, other.eager = None, "it works in a thread of its own"
    return other


def sliding_windows(config: StockConfig) -> tuple[int | None, ...] | None:
    """Return :attr:`Decoder.windows` of a language model's config."""
    size, depth = getattr(config, "sliding_window", None), int(config.num_hidden_layers)
    if size is None or getattr(config, "use_sliding_window", True) is False:
        return None
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * depth
    windows = tuple(int(size) if kind == "sliding_attention" else None for kind in kinds)
    return windows if any(windows) else None
