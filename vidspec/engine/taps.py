"""Observations made beside a forward pass: they read queries, keys and hidden states and never change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

__all__ = ["Taps", "language_to_video_attention"]

#: Attention scores held at a time: 32 MiB.
_BLOCK = 1 << 23


def language_to_video_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    rows: torch.Tensor,
    visual: torch.Tensor,
    scaling: float,
    *,
    keys: Literal["all", "visual"] = "all",
) -> torch.Tensor:
    """Attention of text rows to visual tokens in one layer by KV head, averaged over text rows (SpecVLM Eq. 4).

    The softmax of each row runs over all keys that row may see (causally), then is sliced to the visual keys; or over
    the visual keys alone (HIPPO Eq. 2), so that a row that hardly looks at the video counts like any other.

    Args:
        query: (1, heads, n, d) queries of the whole prompt, rotated.
        key: (1, kv_heads, n, d) keys of the whole prompt, rotated.
        rows: (r,) indices of the text rows after the video.
        visual: (N,) indices of the visual tokens.
        scaling: what scores are multiplied with.
        keys: what the softmax runs over.

    Returns:
        (kv_heads, N) float32, summed over the query heads of each group.
    """
    heads, kv_heads, length = query.shape[1], key.shape[1], key.shape[2]
    groups = heads // kv_heads
    total = torch.zeros(kv_heads, len(visual), dtype=torch.float32, device=key.device)
    some = max(1, _BLOCK // (groups * length))
    seen = visual if keys == "visual" else torch.arange(length, device=key.device)
    for kv in range(kv_heads):  # one group and some rows at a time: a long question must not cost r x n scores
        column = (key[0, kv, visual] if keys == "visual" else key[0, kv]).float().T
        for part in rows.split(some):
            q = query[0, kv * groups : (kv + 1) * groups].index_select(1, part).float()
            scores = (q @ column).mul_(scaling)
            hidden = seen[None, :] > part[:, None]
            weights = scores.masked_fill_(hidden, float("-inf")).softmax(dim=-1)
            total[kv] += (weights if keys == "visual" else weights.index_select(-1, visual)).sum(dim=(0, 1))
    return total / len(rows)


@dataclass
class Taps:
    """What to observe during one prefill, and what was seen.

    Attributes:
        attention: whether to collect :func:`language_to_video_attention`, averaged over heads and layers
            (SpecVLM Eq. 5).
        keys: what the softmax of that average runs over; that of heads and of single blocks runs over all.
        heads: whether to keep it of every layer and KV head.
        ready: called once, as soon as everything has been observed; from within the pass where the blocks are early
            enough, and after it where all blocks are needed.
        attention_at: decoder blocks, the first being 0, whose own language-to-video attention to keep.
        hidden: decoder blocks whose inputs to keep; ``0`` is the embeddings, the number of layers the last output
            before the final norm.
        rows: indices of the text rows after the video.
        visual: indices of the visual tokens.
        states: per requested block (n, hidden) what entered it.
        block_scores: per block in ``attention_at`` (N,) float32, the mean over heads and text rows.
        head_scores: per block (kv_heads, N) float32, of each KV head's group of query heads the sum.
    """

    rows: torch.Tensor
    visual: torch.Tensor
    attention: bool = False
    hidden: Sequence[int] = ()
    states: dict[int, torch.Tensor] = field(default_factory=dict)
    attention_at: Sequence[int] = ()
    block_scores: dict[int, torch.Tensor] = field(default_factory=dict)
    heads: bool = False
    keys: Literal["all", "visual"] = "all"
    ready: Callable[[], None] | None = None
    head_scores: list[torch.Tensor] = field(default_factory=list)
    _sum: torch.Tensor | None = None
    _layers: int = 0  # blocks that have passed

    def observe(self, query: torch.Tensor, key: torch.Tensor, scaling: float) -> None:
        """Called by the attention function of every layer, in order, with rotated queries and all keys."""
        block, self._layers = self._layers, self._layers + 1
        if self.attention or self.heads or block in self.attention_at:
            # Of a model split over devices, each block has its keys on its own.
            rows, visual = self.rows.to(key.device), self.visual.to(key.device)

            def of(keys: Literal["all", "visual"]) -> torch.Tensor:
                found = language_to_video_attention(query, key, rows, visual, scaling, keys=keys)
                return found.to(self.rows.device)

            over = {keys: of(keys) for keys in self._wanted(block)}
            if self.heads:
                self.head_scores.append(over["all"])
            if self.attention:
                score = over[self.keys].sum(0) / query.shape[1]
                self._sum = score if self._sum is None else self._sum + score
            if block in self.attention_at:
                self.block_scores[block] = over["all"].sum(0) / query.shape[1]
                self._check()

    def _wanted(self, block: int) -> set[Literal["all", "visual"]]:
        """Over which keys a block's attention is needed."""
        wanted: set[Literal["all", "visual"]] = {self.keys} if self.attention else set()
        return wanted | ({"all"} if self.heads or block in self.attention_at else set())

    def _check(self, *, over: bool = False) -> None:
        """Call ``ready`` if nothing more is to come."""
        seen = all(index in self.states for index in self.hidden)
        seen = seen and all(block in self.block_scores for block in self.attention_at)
        if self.ready is not None and seen and (over or not (self.attention or self.heads)):
            ready, self.ready = self.ready, None
            ready()

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
            self.states[index] = state[0].detach().to(self.rows.device, copy=True)
            self._check()

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
            self._check(over=True)
        finally:
            for handle in handles:
                handle.remove()
