"""Attention of a pass: each sequence's rows attend to that sequence's keys. Grouped queries, no repeated keys.

Rows of a prompt stretch or a window are causal: they see all earlier entries of their sequence. A tree node sees the
committed entries, its ancestors and itself. No mask over a whole prompt is built. Rows that need one are split into the
entries all of them see and the few entries of the pass itself; the halves are merged by log-sum-exp. On a CPU one
kernel call costs as much as the attention of a short window, so such a window gets a mask over its own keys instead.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from vidspec.engine import flash
from vidspec.engine.rows import Rows
from vidspec.engine.slab import LayerTensors
from vidspec.engine.taps import Taps

#: Most rows of a window that gets a mask on a CPU; longer stretches are merged, or left to flash-attn.
_MASKED = 64


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    *,
    sees: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    window: AttentionWindow | None = None,
) -> torch.Tensor:
    """Return the attention of the last n entries of a sequence to the whole sequence.

    Args:
        query: (n, heads, d) rotated.
        key, value: (1, kv_heads, length, d), including the n rows' own; each serves heads / kv_heads query heads.
        scaling: factor of the scores.
        sees: (n, m) bool, for tree rows: which of the last m entries each row sees; causal if None.
        mask: (1, 1, groups * n, length) additive mask equal to ``sees``, for the CPU kernel.
        window: sliding window, where it is shorter than the sequence.

    Returns:
        (n, heads * d).
    """
    rows, heads, width = query.shape
    kv_heads, length = key.shape[1], key.shape[2]
    groups = heads // kv_heads
    kernel = flash.load_flash_attention() if rows > _MASKED and sees is None and flash.is_supported(query) else None
    if kernel is not None and (window is None or window.runs is None):
        size = None if window is None else window.size
        return flash.causal_attention(kernel, query, key, value, scaling, size).reshape(rows, heads * width)
    if window is not None and (length > window.size or window.runs is not None):
        return _sliding_attention(query, key, value, scaling, sees, window)
    if rows == 1 and sees is None:
        # The heads of a group become rows over the same keys.
        out = F.scaled_dot_product_attention(query.view(1, kv_heads, groups, width), key, value, scale=scaling)
        return out.reshape(1, heads * width)
    if rows == length and sees is None:
        return _causal_attention(query, key, value, scaling).reshape(rows, heads * width)
    packed = query.view(rows, kv_heads, groups, width).permute(1, 2, 0, 3).reshape(1, kv_heads, groups * rows, width)
    if mask is not None:
        out = F.scaled_dot_product_attention(packed, key, value, mask, scale=scaling)
    else:
        own = rows if sees is None else sees.shape[1]
        out = merged_attention(packed, key, value, scaling, own, sees, rows)
    return out.view(kv_heads, groups, rows, width).permute(2, 0, 1, 3).reshape(rows, heads * width)


def _sliding_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    sees: torch.Tensor | None,
    window: AttentionWindow,
) -> torch.Tensor:
    """Return sliding-window attention, a block of rows at a time over the keys in its range."""
    rows, heads, width = query.shape
    kv_heads, length = key.shape[1], key.shape[2]
    before = length - len(window.own)
    places = torch.cat([torch.arange(before, device=key.device), window.own.to(key.device)])
    outs = []
    for start in range(0, rows, _MASKED):
        block = query[start : start + _MASKED]
        own = window.rows[start : start + _MASKED].to(key.device)
        first = max(0, min(before, int(own.min()) - window.size + 1))
        last = before + start + len(block) if sees is None and window.runs is None else length
        near = places[first:last]
        visible = own[:, None] >= near
        if window.runs is not None:
            runs = window.runs.to(key.device)
            block_runs = runs[start : start + _MASKED, None]
            visible[:, before - first :] |= (block_runs == runs) & (block_runs >= 0)
        if sees is not None:
            visible[:, before - first :] = sees[start : start + _MASKED]
        visible &= own[:, None] - near < window.size
        packed = block.view(len(block), kv_heads, -1, width).permute(1, 2, 0, 3).reshape(1, kv_heads, -1, width)
        mask = visible.repeat(heads // kv_heads, 1)
        keys_values = key[:, :, first:last], value[:, :, first:last]
        out = F.scaled_dot_product_attention(packed, *keys_values, mask, scale=scaling)
        outs.append(out.view(kv_heads, -1, len(block), width).permute(2, 0, 1, 3).reshape(len(block), heads * width))
    return torch.cat(outs)


def _causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float) -> torch.Tensor:
    """Return the causal attention of a whole prompt, (n, heads, d), without n x n numbers in memory."""
    groups = query.shape[1] // key.shape[1]
    batched = query.transpose(0, 1)[None]
    if groups == 1 or flash.is_supported(query):
        out = F.scaled_dot_product_attention(batched, key, value, is_causal=True, scale=scaling, enable_gqa=groups > 1)
        return out[0].transpose(0, 1)
    # Kernels without grouped queries (CPU; CUDA in float32 or on old GPUs) repeat the keys: call them once per group
    # member.
    out = torch.empty_like(query)
    for member in range(groups):
        out[:, member::groups] = F.scaled_dot_product_attention(
            batched[:, member::groups], key, value, is_causal=True, scale=scaling
        )[0].transpose(0, 1)
    return out


def merged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    own: int,
    sees: torch.Tensor | None,
    rows: int,
) -> torch.Tensor:
    """Merge attention to the entries all rows see with attention to the last ``own`` entries, by log-sum-exp.

    Args:
        query: (1, kv_heads, groups * rows, d), the rows of each group member together.
        key, value: (1, kv_heads, length, d).
        scaling: factor of the scores.
        own: number of last entries that rows see in part.
        sees: (rows, own) bool; if None the rows are the last entries and causal.
        rows: number of rows.

    Returns:
        (1, kv_heads, groups * rows, d).
    """
    before = key.shape[2] - own
    if sees is None and rows > _MASKED:
        late, late_weight = _causal_chunk(query, key[:, :, before:], value[:, :, before:], scaling, rows)
    else:
        visible = torch.ones(rows, own, dtype=torch.bool, device=key.device).tril_() if sees is None else sees
        scores = (query.float() @ key[:, :, before:].float().transpose(2, 3)) * scaling
        groups = query.shape[2] // rows
        scores = scores.masked_fill_(~visible.repeat(groups, 1), float("-inf"))
        late_weight = scores.logsumexp(-1)
        late = ((scores - late_weight[..., None]).exp() @ value[:, :, before:].float()).to(query.dtype)
    if not before:
        return late
    early, early_weight = _attention_with_lse(query, key[:, :, :before], value[:, :, :before], scaling)
    share = (early_weight.float() - late_weight.float()).sigmoid()[..., None]
    return torch.lerp(late.float(), early.float(), share).to(query.dtype)


def _causal_chunk(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention of a prompt chunk to itself and the log-sum-exp of its scores."""
    members = query.view(*query.shape[:2], -1, rows, query.shape[-1]).unbind(2)
    outs, weights = zip(
        *(_attention_with_lse(member, key, value, scaling, causal=True) for member in members), strict=True
    )
    return torch.cat(outs, 2), torch.cat(weights, 2)


def _attention_with_lse(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, *, causal: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention (1, kv_heads, n, d) and log-sum-exp of scores (1, kv_heads, n), by the device's kernel."""
    if query.device.type == "cpu":
        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, weight = operator(query, key, value, 0.0, causal, scale=scaling)
        return out, weight
    if flash.is_supported(query):
        result = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, scale=scaling)
        return result[0], result[1]
    if query.is_cuda:
        result = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, 0.0, causal, scale=scaling
        )
        return result[0], result[1][..., : query.shape[2]]  # padded to the kernel's block
    scores = (query.float() @ key.float().transpose(2, 3)) * scaling
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    weight = scores.logsumexp(-1)
    return ((scores - weight[..., None]).exp() @ value.float()).to(query.dtype), weight


@dataclass(frozen=True)
class AttentionWindow:
    """Sliding-window attention: a row sees the last ``size`` cache places, its own included.

    ``rows`` (n,) are the places of the rows, ``own`` (m,) those of the last m entries; all earlier entries are in
    order. ``runs`` (n,) numbers runs of rows that see each other in both directions; -1 for none.
    """

    size: int
    rows: torch.Tensor
    own: torch.Tensor
    runs: torch.Tensor | None = None


@dataclass
class _SequenceRows:
    """One sequence's rows in a pass."""

    writes: Sequence[torch.Tensor]
    keys: LayerTensors
    values: LayerTensors
    sees: torch.Tensor | None
    masked: torch.Tensor | None
    masks: dict[int, torch.Tensor]
    taps: Taps | None
    places: tuple[torch.Tensor, torch.Tensor] | None
    runs: torch.Tensor | None


class PassAttention:
    """Attention of one pass: writes each sequence's keys and values and attends.

    Args:
        batch: the rows of each sequence.
        scaling: factor of the scores.
        windows: sliding window of each layer; None for layers that see everything.
        cached: the layers that attend, in order; None if all do.
        mutual: True if adjacent visual tokens see each other in sliding-window layers.
        both_ways: layers in which all rows of a sequence see each other.
        last: the last layer, and how many of each sequence's last rows are needed after it: all, or of a prompt's
            stretch one or none. None if all rows are needed.
    """

    def __init__(
        self,
        batch: Sequence[Rows],
        scaling: float,
        windows: Sequence[int | None] | None = None,
        cached: Sequence[int] | None = None,
        mutual: bool = False,
        both_ways: Collection[int] = (),
        last: tuple[int, Sequence[int]] | None = None,
    ) -> None:
        self.batch, self.scaling, self._windows, self._both_ways = batch, scaling, windows, both_ways
        self._cache_layers = None if cached is None else {layer: at for at, layer in enumerate(cached)}
        self._sequences: list[_SequenceRows] = []
        self._sizes, self._last = [len(rows) for rows in batch], last
        for rows, count in zip(batch, self._sizes, strict=True):
            keys, values = rows.span.entries_to_read(count)
            writes = rows.span.entries_to_write(count)
            sees = None if rows.parents is None else rows.ancestor_mask().to(writes[0].device)
            mask = None
            if (
                writes[0].device.type == "cpu"
                and 1 < count <= _MASKED
                and (count < keys[0].shape[2] or sees is not None)
            ):
                mask = _additive_mask(count, keys[0].shape[2], sees, rows.span.slab.dtype)
            runs = None if rows.prompt is None else _visual_runs(rows) if mutual else _bidirectional_run(rows)
            places = None if windows is None and runs is None else _row_places(rows, count)
            self._sequences.append(_SequenceRows(writes, keys, values, sees, mask, {}, rows.taps, places, runs))

    def __call__(self, layer: int, query: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
        """Store the rows' keys and values and attend.

        Args:
            layer: index of the layer.
            query: (R, heads, d) rotated.
            entries: (R, 2, kv_heads, d), rotated keys and values.

        Returns:
            (R, heads * d); in the last layer without the rows that are not needed after it.
        """
        entries = entries.permute(1, 2, 0, 3)
        counts = self._sizes if self._last is None or layer != self._last[0] else self._last[1]
        if len(self._sequences) == 1:
            return self._attend_sequence(self._sequences[0], layer, query, entries, counts[0])
        split = zip(self._sequences, query.split(self._sizes), entries.split(self._sizes, 2), counts, strict=True)
        return torch.cat([self._attend_sequence(part, layer, own, new, count) for part, own, new, count in split])

    def needed(self, rows: torch.Tensor) -> torch.Tensor:
        """Return those of the rows (R, any) that are needed after the last layer."""
        return rows if self._last is None else last_rows(rows, self._sizes, self._last[1])

    def _attend_sequence(
        self, part: _SequenceRows, layer: int, query: torch.Tensor, entries: torch.Tensor, needed: int
    ) -> torch.Tensor:
        at = layer if self._cache_layers is None else self._cache_layers[layer]
        part.writes[at].copy_(entries)
        keys, values = part.keys[at], part.values[at]
        if part.taps is not None:
            part.taps.observe_attention(layer, query, keys, self.scaling)
        window, size = None, keys.shape[2] if self._windows is None else self._windows[layer]
        if needed < len(query):  # one row, whose window ends with it, or none
            row, first = query[len(query) - needed :], -(size or 0)
            return attend(row, keys[:, :, first:], values[:, :, first:], self.scaling) if needed else row.flatten(1)
        if part.places is not None and size is not None:
            window = AttentionWindow(size, *part.places, part.runs)
        if layer in self._both_ways and len(query) > 1:
            if window is None or keys.shape[2] <= window.size:
                return _attend_to_all(query, keys, values, self.scaling)
            every = torch.ones(len(query), len(query), dtype=torch.bool, device=keys.device)
            return attend(query, keys, values, self.scaling, sees=every, window=window)
        mask, groups = None, query.shape[1] // keys.shape[1]
        if part.masked is not None and (mask := part.masks.get(groups)) is None:
            mask = part.masks[groups] = part.masked.repeat(groups, 1)[None, None]
        return attend(query, keys, values, self.scaling, sees=part.sees, mask=mask, window=window)


def _attend_to_all(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float) -> torch.Tensor:
    """Return the attention (n, heads * d) of rows that all see every entry."""
    (rows, heads, width), kv_heads = query.shape, key.shape[1]
    packed = query.view(rows, kv_heads, -1, width).permute(1, 2, 0, 3).reshape(1, kv_heads, -1, width)
    out = F.scaled_dot_product_attention(packed, key, value, scale=scaling)
    return out.view(kv_heads, -1, rows, width).permute(2, 0, 1, 3).reshape(rows, heads * width)


def last_rows(rows: torch.Tensor, sizes: Sequence[int], counts: Sequence[int]) -> torch.Tensor:
    """Return the last ``counts`` rows of consecutive stretches of ``sizes`` rows."""
    if list(sizes) == list(counts):
        return rows
    return torch.cat([part[size - n :] for part, size, n in zip(rows.split(sizes), sizes, counts, strict=True)])


def _visual_runs(rows: Rows) -> torch.Tensor:
    """Return (n,) run numbers of the visual tokens in a prompt stretch, -1 for text."""
    prompt, (start, end) = rows.prompt, rows.stretch
    assert prompt is not None
    index = prompt.visual.index.cpu()
    shown = torch.zeros(end - start, dtype=torch.long)
    shown[index[(index >= start) & (index < end)] - start] = 1
    begins = shown.diff(prepend=shown.new_zeros(1)) > 0
    return torch.where(shown > 0, begins.cumsum(0), -1)


def _bidirectional_run(rows: Rows) -> torch.Tensor | None:
    """Return (n,) 0 for the rows of a prompt stretch that see each other, -1 for others; None if there are none."""
    assert rows.prompt is not None
    start, end = rows.stretch
    index = rows.prompt.bidirectional.cpu()
    index = index[(index >= start) & (index < end)]
    if not len(index):
        return None
    run = torch.full((end - start,), -1)
    run[index - start] = 0
    return run


def _row_places(rows: Rows, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places of the rows and of the last entries, which include the rows."""
    start = rows.span.length
    if rows.parents is None:
        places = torch.arange(start, start + count)
        return places, places
    places_of_nodes = torch.tensor(rows.depths) + start + count - len(rows.parents)
    return places_of_nodes[len(places_of_nodes) - count :], places_of_nodes


def _additive_mask(rows: int, length: int, sees: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Return an additive mask (rows, length)."""
    visible = torch.ones(rows, rows, dtype=torch.bool).tril_() if sees is None else sees
    mask = torch.zeros(rows, length, dtype=dtype)
    mask[:, length - visible.shape[1] :].masked_fill_(~visible, float("-inf"))
    return mask


def split_count(kv_heads: int, tiles: int, processors: int) -> int:
    """Return the number of splits of each sequence's keys in a layer, a power of two from 8 to 64.

    The nearest to two programs per processor; there is one program per KV head, tile of rows and split. More splits
    cost memory and time to merge: with many rows they would outweigh the keys.

    Args:
        kv_heads: KV heads of the layer.
        tiles: lower bound of the tiles of rows that load the same keys.
        processors: streaming multiprocessors of the device.
    """
    return max(8, min(64, 1 << round(math.log2(max(1.0, 2 * processors / (kv_heads * tiles))))))
