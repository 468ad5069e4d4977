"""Observers of forward passes: they read queries, keys and hidden states and never change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

#: Attention scores held at a time: 32 MiB.
_BLOCK = 1 << 23


def language_to_video_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    rows: torch.Tensor,
    visual: torch.Tensor,
    scaling: float,
    start: int = 0,
    keys: Literal["all", "visual"] = "all",
) -> torch.Tensor:
    """Return the attention of text rows to visual tokens in one layer by KV head, averaged over rows (SpecVLM Eq. 4).

    The softmax of each row runs over all keys that row may see (causally), then is sliced to the visual keys; or over
    the visual keys alone (HIPPO Eq. 2), so that a row with little attention to the video counts like any other.

    Args:
        query: (1, heads, n, d) queries of the prompt's rows from ``start`` on, rotated.
        key: (1, kv_heads, start + n, d) keys of all rows so far, rotated.
        rows: (r,) indices of text rows after the video, all from ``start`` on.
        visual: (N,) indices of the visual tokens.
        scaling: factor of the scores.
        start: prompt rows of earlier passes.
        keys: keys of the softmax.

    Returns:
        (kv_heads, N) float32, summed over the query heads of each group.
    """
    heads, kv_heads, length = query.shape[1], key.shape[1], key.shape[2]
    groups = heads // kv_heads
    total = torch.zeros(kv_heads, len(visual), dtype=torch.float32, device=key.device)
    block = max(1, _BLOCK // (groups * length))
    seen = visual if keys == "visual" else torch.arange(length, device=key.device)
    for kv in range(kv_heads):  # one group and a block of rows at a time: a long question must not cost r x n scores
        column = (key[0, kv, visual] if keys == "visual" else key[0, kv]).float().T
        for part in rows.split(block):
            q = query[0, kv * groups : (kv + 1) * groups].index_select(1, part - start).float()
            scores = (q @ column).mul_(scaling)
            hidden = seen[None, :] > part[:, None]
            weights = scores.masked_fill_(hidden, float("-inf")).softmax(dim=-1)
            total[kv] += (weights if keys == "visual" else weights.index_select(-1, visual)).sum(dim=(0, 1))
    return total / len(rows)


@dataclass
class Taps:
    """Observations of one prefill, in one pass or several: the requests and the results.

    It counts the observed prompt rows of each block: a pass that is run again, with the same rows or others, adds only
    new rows.

    Attributes:
        rows: indices of the text rows after the video.
        visual: indices of the visual tokens.
        attention: True to collect :func:`language_to_video_attention`, averaged over heads and layers (SpecVLM Eq. 5).
        keys: keys of that average's softmax; for heads and single blocks it runs over all keys.
        heads: True to keep the attention of every layer and KV head.
        attention_at: decoder blocks, the first being 0, whose own language-to-video attention to keep.
        hidden: decoder blocks whose inputs to keep; ``0`` is the embeddings, the number of layers the last output
            before the final norm.
        ready: called once, as soon as every prompt row has been observed in all requested blocks; during the pass if
            the blocks are early enough, after it if all blocks are needed.
        keeps: (L,) bool, the prompt rows whose inputs are kept; None for all.
        error: exception of ``ready``. The pass, which other sequences may share, continues.
        states: (n, hidden) inputs of each requested block, for the rows read so far that it ``keeps``.
    """

    rows: torch.Tensor
    visual: torch.Tensor
    attention: bool = False
    hidden: Sequence[int] = ()
    attention_at: Sequence[int] = ()
    heads: bool = False
    keys: Literal["all", "visual"] = "all"
    ready: Callable[[], None] | None = None
    keeps: torch.Tensor | None = None
    error: Exception | None = None
    states: dict[int, torch.Tensor] = field(default_factory=dict)
    #: Scores (kv_heads, N) of each block over the rows read so far, by the keys of the softmax.
    _by_head: dict[str, dict[int, torch.Tensor]] = field(default_factory=lambda: {"all": {}, "visual": {}})
    _queries: int = 1  # query heads
    _start: int = 0  # of the pass's rows in the prompt
    _length: int = 0  # of the prompt
    #: Prompt rows observed so far: of a block's input, and of its attention over these keys.
    _rows_observed: dict[tuple[str, int], int] = field(default_factory=dict)
    #: Block observed for each block in ``attention_at``.
    _source_blocks: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._source_blocks = {block: block for block in self.attention_at}

    def begin(self, start: int, length: int, attending: Sequence[int] | None = None) -> None:
        """Begin a pass over the rows from ``start`` on, of a prompt of ``length`` rows.

        If not all blocks attend, a block that does not is replaced by the next of those ``attending``, or the last.
        """
        self._start, self._length = start, length
        if attending is not None:
            for block in self.attention_at:
                self._source_blocks[block] = min(
                    (other for other in attending if other >= block), default=attending[-1]
                )

    def observe_block_input(self, block: int, rows: torch.Tensor) -> None:
        """Observe the rows (n, hidden) that enter a block or the final norm."""
        if block in self.hidden and (new := self._first_new("hidden", block, len(rows))) is not None:
            seen = rows[new - self._start :].detach()
            if self.keeps is not None:
                seen = seen[self.keeps[new : self._start + len(rows)].to(seen.device)]
            seen = seen.to(rows.device, copy=self.keeps is None).to(self.rows.device)
            self.states[block] = torch.cat([self.states[block], seen]) if block in self.states else seen
            self._check()

    def joined_states(self, blocks: Sequence[int], rows: torch.Tensor) -> torch.Tensor:
        """Return the inputs (n, blocks * hidden) of blocks at prompt rows (n,), concatenated; all must be kept."""
        if self.keeps is not None:
            rows = (self.keeps.cumsum(0) - 1).to(rows.device)[rows]
        return torch.cat([self.states[block][rows] for block in blocks], dim=1)

    def observe_attention(self, block: int, query: torch.Tensor, key: torch.Tensor, scaling: float) -> None:
        """Observe a block's rotated queries (n, heads, d) of the pass and all keys (1, kv_heads, length, d)."""
        wanted = block in self._source_blocks.values()
        if not (self.attention or self.heads or wanted):
            return
        self._queries = query.shape[1]
        # In a model split over devices, each block has its keys on its own device.
        rows, visual = self.rows.to(key.device), self.visual.to(key.device)
        batched = query.transpose(0, 1)[None]
        for keys in self._softmax_keys(wanted):
            if (new := self._first_new(keys, block, len(query))) is None:
                continue
            text_rows = rows[(rows >= new) & (rows < self._start + len(query))]
            if len(text_rows):
                seen = language_to_video_attention(batched, key, text_rows, visual, scaling, self._start, keys)
                seen = (seen * (len(text_rows) / len(self.rows))).to(self.rows.device)
                before = self._by_head[keys].get(block)
                self._by_head[keys][block] = seen if before is None else before + seen
        if wanted:
            self._check()

    def end(self) -> None:
        """End the pass."""
        self._check(over=True)

    def _first_new(self, kind: str, block: int, count: int) -> int | None:
        """Return the first of the pass's ``count`` rows that was not observed before; None if all were."""
        first = max(self._start, self._rows_observed.get((kind, block), 0))
        if first >= self._start + count:
            return None
        self._rows_observed[kind, block] = self._start + count
        return first

    def _is_complete(self, kind: str, block: int) -> bool:
        """Return True if every row of the prompt was observed there."""
        return self._rows_observed.get((kind, block), 0) >= max(1, self._length)

    def _softmax_keys(self, own: bool) -> set[Literal["all", "visual"]]:
        """Return the softmax keys for which a block's attention is needed; ``own``: the block itself is requested."""
        wanted: set[Literal["all", "visual"]] = {self.keys} if self.attention else set()
        return wanted | ({"all"} if self.heads or own else set())

    def _check(self, *, over: bool = False) -> None:
        """Call ``ready`` if all observations are complete; ``over``: the pass has run all blocks."""
        if self.ready is None or ((self.attention or self.heads) and not over):
            return
        complete = all(self._is_complete("hidden", block) for block in self.hidden)
        complete = complete and all(self._is_complete("all", block) for block in self._source_blocks.values())
        if self.attention or self.heads:
            observed = [block for kind, block in self._rows_observed if kind == ("all" if self.heads else self.keys)]
            complete = (
                complete
                and bool(observed)
                and all(self._is_complete("all" if self.heads else self.keys, at) for at in observed)
            )
        if complete:
            ready, self.ready = self.ready, None
            try:
                ready()
            except Exception as error:  # of this clip only; other clips' rows may be in the pass
                self.error = error

    @property
    def block_scores(self) -> dict[int, torch.Tensor]:
        """(N,) float32 for each fully observed block in ``attention_at``, the mean over heads and text rows."""
        scores = self._by_head["all"]
        return {
            at: scores[block].sum(0) / self._queries
            for at, block in self._source_blocks.items()
            if self._is_complete("all", block)
        }

    @property
    def head_scores(self) -> list[torch.Tensor]:
        """(kv_heads, N) float32 for each block, summed over each KV head's group of query heads."""
        return [self._by_head["all"][block] for block in sorted(self._by_head["all"])]

    @property
    def attention_scores(self) -> torch.Tensor:
        """(N,) float32: the mean over layers, heads and text rows."""
        if not self.attention or not self._by_head[self.keys]:
            raise ValueError("attention was not observed")
        return torch.stack([scores.sum(0) for scores in self._by_head[self.keys].values()]).mean(0) / self._queries
