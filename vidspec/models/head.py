"""Base classes of draft heads: one block that drafts from hidden states of its target, and its input rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vidspec.engine.decoder import Decoder
from vidspec.engine.device import to_device
from vidspec.engine.graphs import ReplayedPasses
from vidspec.models.video_language_model import VideoLanguageModel

__all__ = ["Head", "HeadDecoder", "HeadRows"]


@dataclass(frozen=True)
class _NoVisualRows:
    """Empty visual rows: nothing is added after a block."""

    index: torch.Tensor
    deepstack: Sequence[torch.Tensor] = ()


@dataclass(frozen=True)
class HeadRows:
    """Input rows of a head, as a :class:`~vidspec.engine.rows.Prompt` of the engine.

    Attributes:
        embeds: (1, n, 2 * hidden), an embedding and a state per row.
        positions: (axes, 1, n).
    """

    embeds: torch.Tensor
    positions: torch.Tensor

    @property
    def visual(self) -> _NoVisualRows:
        return _NoVisualRows(torch.empty(0, dtype=torch.long))

    @property
    def length(self) -> int:
        return int(self.embeds.shape[1])

    @property
    def next_position(self) -> int:
        return self.length  # unused: rows of a head carry their positions


class HeadDecoder:
    """Base class of the decoders of heads (:class:`~vidspec.engine.decoder.Decoder`): one block, no packed weights."""

    name = "head"
    why = "one block of its own"
    depth = 1
    mutual = False
    prunable = True
    cached: tuple[int, ...] | None = None
    packed_bytes = only_bytes = state_bytes = numbers = 0
    graphs: ReplayedPasses | None = None
    eager: str | None = "the rows of a head are no token ids"

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        raise TypeError("the rows of a head are embeddings and states, not ids")


class Head(ABC):
    """A loaded head, bound to the target that it was checked against.

    The output of its block, before the decoder's norm, is the state of its next step.

    Attributes:
        name: the name the user gave.
        target: the model whose states and, unless the head has its own, embeddings it reads.
        vocabulary: number of ids it can propose, without those the target cannot emit.
        tokens: (vocabulary,) the target's id of each.
        blocks: target blocks whose input it reads; the number of blocks stands for the input of the final norm.
    """

    name: str
    target: VideoLanguageModel
    device: torch.device
    decoder: Decoder
    vocabulary: int
    tokens: torch.Tensor
    blocks: tuple[int, ...]

    @abstractmethod
    def joined(self, states: torch.Tensor) -> torch.Tensor:
        """Project concatenated target states (n, blocks * target's hidden) to (n, hidden)."""

    @property
    def needs(self) -> frozenset[str]:
        """Required signals of the target's prefill."""
        return frozenset(f"hidden@{block}" for block in self.blocks)

    @torch.inference_mode()
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (n, hidden) of the target's ids (n,)."""
        return self.target.embed(to_device(ids, self.target.device)).to(self.device)

    @torch.inference_mode()
    def embed_prompt(self, token_ids: torch.Tensor, visual: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (n, hidden) of a prompt, with the target's features at its ``visual`` rows.

        If the head is not as wide as the target, these rows keep the embedding of the placeholder token.
        """
        embeds = self.embed(token_ids)
        if len(visual) and features.shape[1] == embeds.shape[1]:
            embeds = embeds.clone()
            embeds[visual.to(self.device)] = features.to(embeds)
        return embeds

    @torch.inference_mode()
    def fed(self, embeddings: torch.Tensor, states: torch.Tensor, positions: torch.Tensor) -> HeadRows:
        """Build input rows from embeddings and states, both (n, hidden), at positions (axes, n)."""
        rows = torch.cat([embeddings, states], dim=1)[None]
        return HeadRows(rows, to_device(positions, self.device).expand(self.decoder.axes, -1)[:, None])
