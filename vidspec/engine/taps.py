"""Observations made beside a forward pass: they read queries, keys and hidden states and never change them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

__all__ = ["Taps", "language_to_video_attention"]


def language_to_video_attention(
    query: torch.Tensor, key: torch.Tensor, rows: torch.Tensor, visual: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Attention of text rows to visual tokens in one layer, averaged over heads and rows (SpecVLM Eq. 4-5).

    The softmax of each row runs over all keys that row may see (causally), then is sliced to the visual keys.

    Args:
        query: (1, heads, n, d) queries of the whole prompt, rotated.
        key: (1, kv_heads, n, d) keys of the whole prompt, rotated.
        rows: (r,) indices of the text rows after the video.
        visual: (N,) indices of the visual tokens.
        scaling: what scores are multiplied with.

    Returns:
        (N,) float32.
    """
    heads, kv_heads, length = query.shape[1], key.shape[1], key.shape[2]
    groups = heads // kv_heads
    hidden = torch.arange(length, device=key.device)[None, :] > rows[:, None]
    total = torch.zeros(len(visual), dtype=torch.float32, device=key.device)
    for kv in range(kv_heads):  # one group at a time: r x n scores per query head are the most that is held
        q = query[0, kv * groups : (kv + 1) * groups].index_select(1, rows).float()
        scores = (q @ key[0, kv].float().T) * scaling
        weights = scores.masked_fill_(hidden, float("-inf")).softmax(dim=-1)
        total += weights.index_select(-1, visual).sum(dim=(0, 1))
    return total / (heads * len(rows))


@dataclass
class Taps:
    """What to observe during one prefill, and what was seen.

    Attributes:
        attention: whether to collect :func:`language_to_video_attention`, averaged over all layers.
        attention_at: decoder blocks, the first being 0, whose own language-to-video attention to keep.
        hidden: decoder blocks whose inputs to keep; ``0`` is the embeddings, the number of layers the last output
            before the final norm.
        rows: indices of the text rows after the video.
        visual: indices of the visual tokens.
        states: per requested block (n, hidden) what entered it.
        block_scores: per block in ``attention_at`` (N,) float32, the mean over heads and text rows.
    """

    rows: torch.Tensor
    visual: torch.Tensor
    attention: bool = False
    hidden: Sequence[int] = ()
    states: dict[int, torch.Tensor] = field(default_factory=dict)
    attention_at: Sequence[int] = ()
    block_scores: dict[int, torch.Tensor] = field(default_factory=dict)
    _sum: torch.Tensor | None = None
    _layers: int = 0  # blocks that have passed

    def observe(self, query: torch.Tensor, key: torch.Tensor, scaling: float) -> None:
        """Called by the attention function of every layer, in order, with rotated queries and all keys."""
        block, self._layers = self._layers, self._layers + 1
        if self.attention or block in self.attention_at:
            score = language_to_video_attention(query, key, self.rows, self.visual, scaling)
            if self.attention:
                self._sum = score if self._sum is None else self._sum + score
            if block in self.attention_at:
                self.block_scores[block] = score

    @property
    def attention_scores(self) -> torch.Tensor:
        """(N,) float32: the mean over layers, heads and text rows."""
        if self._sum is None:
            raise ValueError("attention was not observed")
        return self._sum / self._layers

    @contextmanager
    def watching(self, layers: nn.ModuleList) -> Iterator[None]:
        """Keep the requested blocks' inputs while the context is open."""

        def keep(index: int, state: torch.Tensor) -> None:
            self.states[index] = state[0].detach().clone()

        def before(index: int):  # type: ignore[no-untyped-def]
            def hook(_module: nn.Module, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]) -> None:
                keep(index, args[0] if args else kwargs["hidden_states"])

            return hook

        def after(index: int):  # type: ignore[no-untyped-def]
            def hook(_module: nn.Module, _args: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
                keep(index, output[0] if isinstance(output, tuple) else output)

            return hook

        handles = [
            layers[index - 1].register_forward_hook(after(index))
            if index == len(layers)
            else layers[index].register_forward_pre_hook(before(index), with_kwargs=True)
            for index in self.hidden
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
