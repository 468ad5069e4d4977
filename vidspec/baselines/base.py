"""Rules for pruning the target: their contract, shared scores and stage arithmetic; runs no model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

from vidspec.bounds import LAYERS
from vidspec.errors import ModelError
from vidspec.pruning.base import best
from vidspec.registry import key

if TYPE_CHECKING:
    import torch

    from vidspec.models.base import EmbeddedPrompt, VisualTokens

WholeBlocks = Annotated[int | None, key("blocks that read everything; null: as many as the paper's", ge=1, le=LAYERS)]


@dataclass(frozen=True)
class BlockSignals:
    """Inputs of a pruning method after a decoder block.

    Attributes:
        prompt: the prompt as it entered the first block, L rows.
        visual: the n remaining visual tokens; their ``index`` counts the remaining rows.
        states: (rows, hidden) outputs of the block for the remaining rows.
        query: (1, heads, rows, d) of the block, rotated.
        key: (1, kv_heads, rows, d) of the block, rotated.
        scaling: of its attention scores.
    """

    prompt: EmbeddedPrompt
    visual: VisualTokens
    states: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    scaling: float

    @property
    def text(self) -> torch.Tensor:
        """(r,) rows of the text after the video; they are never dropped."""
        import torch

        rows = len(self.states)
        return torch.arange(rows - len(self.prompt.text_rows_after_video), rows, device=self.key.device)

    def attention(self, rows: torch.Tensor) -> torch.Tensor:
        """Return (n,) float32 attention of ``rows`` to each visual token, the mean over rows and heads."""
        from vidspec.engine.taps import language_to_video_attention

        index = self.visual.index.to(self.key.device)
        by_head = language_to_video_attention(self.query, self.key, rows, index, self.scaling)
        return by_head.sum(0) / self.query.shape[1]

    def last_attention(self) -> torch.Tensor:
        """Return (n,) float32 attention of the prompt's last row to each visual token, the mean over heads."""
        return last_row_attention(self.query, self.key, self.visual.index, self.scaling)


class KeptTokens(NamedTuple):
    """The tokens kept of n visual tokens.

    Attributes:
        kept: (K,) sorted indices.
        into: None, or (n,) the kept token into which each token is merged; -1 for tokens that are not merged. The kept
            token becomes the mean of all tokens merged into it.
    """

    kept: torch.Tensor
    into: torch.Tensor | None = None


class PruningRule(ABC):
    """Chooses the visual tokens that each block of the target reads.

    ``retention`` is the share of the prompt's visual tokens that a block reads, on average over the blocks; ``keep``
    sets the shares directly.

    Attributes:
        similarity: with :meth:`reads`, entries are chosen again when the cosine with the attention at the last choice
            falls below it.
    """

    similarity: float = 0.0

    def before(self, prefix: EmbeddedPrompt) -> torch.Tensor | None:
        """Return (K,) sorted indices of the visual tokens that enter the first block; None for all."""
        return None

    @abstractmethod
    def stages(self, depth: int) -> Mapping[int, float]:
        """Return the stages: number of blocks (of ``depth``) after which tokens are dropped -> share that is kept.

        Raises:
            ModelError: the model has too few blocks.
        """

    def choose(self, reading: BlockSignals, share: float) -> KeptTokens:
        """Choose visual tokens to keep, a share of the prompt's: those the prompt's last row attends to most."""
        return KeptTokens(best(reading.last_attention(), reading.visual, places(reading, share)))

    def reads(self, depth: int, entered: float) -> tuple[int, float] | None:
        """Return how many of ``depth`` blocks read all cache entries, and the share of visual ones the others read.

        None if decoding reads all entries that the prefill left. The entries are chosen while decoding, by the
        attention in the last block that reads everything. ``entered`` is the share of the prompt's visual tokens that
        entered the first block.
        """
        return None


def share_of(tokens: int, share: float) -> int:
    """Return a share of ``tokens``, rounded, at least one."""
    return max(1, round(share * tokens))


def places(reading: BlockSignals, share: float) -> int:
    """Return the number of visual tokens to keep: a share of the prompt's, at least one, at most all remaining."""
    return min(share_of(len(reading.prompt.visual), share), len(reading.visual))


def last_row_attention(query: torch.Tensor, key: torch.Tensor, visual: torch.Tensor, scaling: float) -> torch.Tensor:
    """Return the last row's attention to visual tokens in one block: softmax over all keys, mean over heads.

    Args:
        query: (1, heads, n, d) rotated; only the last row counts.
        key: (1, kv_heads, length, d) rotated; the last row attends to all.
        visual: (N,) indices of the visual tokens among the keys.
        scaling: factor of the scores.

    Returns:
        (N,) float32.
    """
    heads, kv_heads = query.shape[1], key.shape[1]
    last = query[0, :, -1].float().view(kv_heads, heads // kv_heads, -1)
    weights = (last @ key[0].float().transpose(1, 2)).mul_(scaling).softmax(dim=-1)
    return weights.index_select(-1, visual.to(key.device)).mean(dim=(0, 1))


def whole_blocks(wanted: int, depth: int, retention: float) -> int:
    """Return how many first blocks read everything, for a mean share ``retention`` over ``depth`` blocks.

    **D**: the method's own number (``wanted``), but at least a tenth of what is read is left to the other blocks.
    FastV's two blocks fit ParallelVLM's 10% in its models of 28 to 80 blocks; PyramidDrop's first quarter does not.

    Raises:
        ModelError: even one block is too many.
    """
    budget = retention * depth
    if budget <= 1 and retention < 1:
        raise ModelError(
            f"lossy.retention {retention:g}: the first of {depth} blocks reads everything, {1 / depth:.0%} of all",
            hint=f"give --set lossy.retention={math.floor(100 / depth) / 100 + 0.05:g}",
        )
    return max(1, min(wanted, math.floor(0.9 * budget)))


def on_average(stages: Sequence[tuple[int, float]], depth: int, retention: float) -> dict[int, float]:
    """Scale the shares of stages so that their mean over all blocks is ``retention``.

    Blocks before the first stage read everything. All shares are multiplied by one factor and capped at 1. The first
    stage comes earlier if :func:`whole_blocks` requires it.

    Args:
        stages: (number of blocks before the stage, the method's own share), in order.
        depth: blocks of the model.
        retention: the mean.

    Raises:
        ModelError: the model has too few blocks.
    """
    placed = without_overlap(stages, depth)
    if not placed:
        return {}
    first, *later = placed
    whole = whole_blocks(first, depth, retention)
    starts, shares = [whole, *later], list(placed.values())
    lengths = [end - start for start, end in zip(starts, [*starts[1:], depth], strict=True)]
    left, full = retention * depth - whole, set[int]()
    while True:
        rest = [i for i in range(len(starts)) if i not in full]
        free = left - sum(lengths[i] for i in full)
        factor = free / sum(lengths[i] * shares[i] for i in rest) if rest else 0.0
        reached = {i for i in rest if factor * shares[i] >= 1}
        if not reached:
            break
        full |= reached
    return {start: 1.0 if i in full else factor * shares[i] for i, start in enumerate(starts)}


def without_overlap(stages: Sequence[tuple[int, float]], depth: int) -> dict[int, float]:
    """Return the stages (blocks, share) that are distinct in a model of ``depth`` blocks.

    **D**: no stage comes before the first block; of two after the same block the later wins; one after the last block
    is dropped, since nothing is left to save.
    """
    found: dict[int, float] = {}
    for blocks, share in stages:
        found[max(1, blocks)] = share
    return {blocks: share for blocks, share in found.items() if blocks < depth}
