"""What heads share: a block that drafts from states of its target, its rows, and how its tensors are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vidspec.engine.decoder import Decoder
from vidspec.engine.graphs import ReplayedPasses
from vidspec.models.base import VideoLanguageModel

__all__ = ["Head", "HeadDecoder", "HeadRows"]


@dataclass(frozen=True)
class _NoVisualRows:
    """Of rows that add nothing behind a block."""

    index: torch.Tensor
    deepstack: Sequence[torch.Tensor] = ()


@dataclass(frozen=True)
class HeadRows:
    """Rows for a head, as the engine takes a prompt (:class:`~vidspec.engine.rows.Prompt`).

    Attributes:
        embeds: (1, n, 2 * hidden), of each row an embedding and a state.
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
        return self.length  # of no use: all rows of a head come with their positions


class HeadDecoder:
    """What is alike in all that run a head's one block (:class:`~vidspec.engine.decoder.Decoder`)."""

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

    What its block gives, before the decoder's norm, is the state that it goes on with.

    Attributes:
        name: what the user called it.
        target: whose states and, unless it has its own, whose embeddings it reads.
        vocabulary: ids that it can propose; those the target cannot emit are left out.
        tokens: (vocabulary,) the target's id of each.
        blocks: of the target whose input it reads; their number stands for what enters the final norm.
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
        """(n, hidden) of the target's states side by side, (n, blocks * target's hidden)."""

    @property
    def needs(self) -> frozenset[str]:
        """Signals of the target's prefill."""
        return frozenset(f"hidden@{block}" for block in self.blocks)

    @torch.inference_mode()
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """(n, hidden) of the target's ids (n,)."""
        return self.target.embed(ids.to(self.target.device)).to(self.device)

    @torch.inference_mode()
    def embed_prompt(self, token_ids: torch.Tensor, visual: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """(n, hidden) of a prompt: at its ``visual`` rows the features that the target reads there.

        Where the head is not as wide as the target, the embedding of the token that stands for the video.
        """
        embeds = self.embed(token_ids)
        if len(visual) and features.shape[1] == embeds.shape[1]:
            embeds = embeds.clone()
            embeds[visual.to(self.device)] = features.to(embeds)
        return embeds

    @torch.inference_mode()
    def fed(self, embeddings: torch.Tensor, states: torch.Tensor, positions: torch.Tensor) -> HeadRows:
        """Rows of embeddings and states, both (n, hidden), at positions (axes, n)."""
        rows = torch.cat([embeddings, states], dim=1)[None]
        return HeadRows(rows, positions.to(self.device).expand(self.decoder.axes, -1)[:, None])
