"""One pass of few tokens as a fixed list of kernels, independent of lengths, and the table of its rows.

All that differs between sequences is this table on the device, a column of numbers for each row; the host writes it and
reads nothing back. Unused rows write to the slab's scratch entry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike

from vidspec.engine.device import to_device
from vidspec.engine.slab import KVSpan, Slab

if TYPE_CHECKING:
    from vidspec.engine.decoder import ReplayableDecoder

#: Most rows of one sequence in a pass: the entries that only some of its rows see are the bits of one number.
MOST = 64
#: Signature of an attention kernel, see :func:`~vidspec.engine.kernel.split_attention`.
ReplayedAttention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]


_WORD = np.dtype(np.int64)


class HostTable:
    """Host data of a pass in one pinned buffer, copied to the device at once.

    Arrays of any dtype travel together: added before :meth:`send`, read as tensors of the device after it.
    """

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._parts: tuple[torch.Tensor, ...] = ()

    @property
    def is_sent(self) -> bool:
        """True if it is on the device."""
        return bool(self._parts)

    def add(self, numbers: ArrayLike, dtype: type[np.generic] = np.int64) -> int:
        """Add an array and return its index."""
        self._arrays.append(np.ascontiguousarray(numbers, dtype))
        return len(self._arrays) - 1

    def send(self, device: torch.device) -> None:
        """Copy all arrays to a device, from memory that the host does not write to again."""
        words = [_as_words(array) for array in self._arrays]
        sent = to_device(torch.from_numpy(np.concatenate(words)), device)
        self._parts = torch.split_with_sizes(sent, list(map(len, words)))

    def host(self, index: int) -> np.ndarray:
        """Return an array on the host."""
        return self._arrays[index]

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return an array on the device."""
        array, part = self._arrays[index], self._parts[index]
        if array.dtype != _WORD:
            part = part.view(torch.from_numpy(array[:0]).dtype)[: array.size]
        return part if array.ndim == 1 else part.view(array.shape)


def _as_words(array: np.ndarray) -> np.ndarray:
    """Return the bytes of an array as whole words."""
    flat = array.reshape(-1)
    if flat.nbytes % _WORD.itemsize:
        flat = np.concatenate([flat, np.zeros(-flat.size % _WORD.itemsize, flat.dtype)])
    return flat.view(_WORD)


class StepAttention:
    """Attention of a replayed pass over the slab; each row's entry is stored at its slot.

    Args:
        decoder: decoder of the pass.
        table: of :class:`GraphStep`.
        attend: attention of a layer.
    """

    def __init__(self, decoder: ReplayableDecoder, table: torch.Tensor, attend: ReplayedAttention) -> None:
        self._windows, self._scaling, self._attend = decoder.windows, decoder.scaling, attend
        self._table, self._slot = table, 2 + decoder.axes
        self._row_index = torch.arange(table.shape[1], device=table.device)
        layers = decoder.slab.layers(0, decoder.slab.capacity + 1)
        self._layers = [(layer, layer[0], layer[1]) for layer in layers]
        self._fields_by_window: dict[int | None, torch.Tensor] = {}

    def begin(self) -> None:
        """Prepare the fields of the table that attention takes, by sliding window."""
        self._fields_by_window = {size: self._fields(size) for size in set(self._windows or (None,))}

    def __call__(self, layer: int, query: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
        """Store the rows' keys and values and attend, as :class:`~vidspec.engine.attention.PassAttention` does."""
        cache, slots = self.stored(layer)
        cache.index_copy_(2, slots, entries.permute(1, 2, 0, 3))
        return self.attend(layer, query)

    def stored(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a layer's cache, (2, kv_heads, capacity, d), and each row's slot in it, (R,)."""
        return self._layers[layer][0], self._table[self._slot]

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Return the attention (R, heads * d) of rotated queries (R, heads, d) whose entries are stored."""
        _, keys, values = self._layers[layer]
        seen = self._fields_by_window[None if self._windows is None else self._windows[layer]]
        return self._attend(query, keys, values, seen, self._scaling)

    def _fields(self, size: int | None) -> torch.Tensor:
        """Return (6, R) the fields of the table that attention takes.

        In a sliding window each row counts as a sequence of its own that begins with the first entry the row sees. All
        nodes of a tree are within the window of each other.
        """
        seen = self._table[self._slot + 1 : self._slot + 7]
        if size is None:
            return seen
        out = (self._table[self._slot - 1] - (size - 1)).clamp_(min=0)
        common, length, start, _, sees, split = seen
        return torch.stack([common - out, length - out, start + out, self._row_index, sees, split.clamp(max=size)])


class GraphStep:
    """One pass of ``count`` rows over static tensors.

    Args:
        decoder: decoder whose blocks run.
        count: number of rows.
        vocabulary: number of logits to keep.
        attend: attention of a layer.
        tapped: blocks whose inputs are kept; the number of blocks stands for the input of the final norm.
        chained: True if each row's token is the input of the next pass.

    Attributes:
        idle: table of a pass without rows, on the host.
        table: (9 + axes, count) int64, for each row: token id; rotary positions; entries of its sequence before it on
            its path; slot in the slab; entries that all rows of its sequence see; entries of the sequence; its first
            entry in the slab; its first row in the pass; the later entries that this row sees, as bits; entries of its
            sequence in its first replayed pass, 0 for idle rows. The fields that a next token advances come first. For
            a chained pass a last row has the number of tokens to read, 0 for idle rows.
        logits, hidden: (count, vocabulary) and (count, hidden) of the last pass.
        entering: (count, hidden) input of each ``tapped`` block in the last pass, by block.
        states: (count, width) of a head, the state that it reads with each row's token; a chained pass replaces it.
        tokens: (count,) argmax of each row, as ids of the target.
        marked: size of a vocabulary that holds the ids of all logits, for the marks of penalties.
    """

    logits: torch.Tensor
    hidden: torch.Tensor
    tokens: torch.Tensor

    def __init__(
        self,
        decoder: ReplayableDecoder,
        count: int,
        vocabulary: int,
        attend: ReplayedAttention,
        tapped: Collection[int] = (),
        *,
        chained: bool = False,
    ) -> None:
        self.chained, self.tapped, self.entering = chained, tapped, dict[int, torch.Tensor]()
        self.decoder, self.count, self.vocabulary = decoder, count, vocabulary
        self._slot = 2 + decoder.axes
        self.idle = _idle_table(decoder.slab, decoder.axes, count)[: None if chained else -1]
        self._idle_table = torch.from_numpy(self.idle).to(decoder.device, copy=True)
        self.table = self._idle_table.clone()
        if chained:
            self.logits = torch.zeros(count, vocabulary, dtype=decoder.slab.dtype, device=decoder.device)
            self._advance = torch.zeros(len(self.idle), 1, dtype=torch.long, device=decoder.device)
            self._advance[1 : self._slot + 3].fill_(1)
            self._advance[-1].fill_(-1)
        self._attention = StepAttention(decoder, self.table, attend)
        self.inputs = inputs = decoder.state_inputs
        self.marked = vocabulary if inputs is None else inputs.marked
        self.states: torch.Tensor | None = None
        if inputs is not None:
            self.states = torch.zeros(count, inputs.width, dtype=decoder.slab.dtype, device=decoder.device)

    def set_idle(self) -> None:
        """Make all rows idle."""
        self.table.copy_(self._idle_table)

    def __call__(self) -> None:
        """Run the pass; a chained one then advances its rows."""
        decoder, table = self.decoder, self.table
        rows, rotation = decoder.embed(table[0]), decoder.rotation(table[1 : self._slot - 1])
        if self.states is not None:
            rows = torch.cat([rows, self.states], 1)
        self._attention.begin()
        for index in range(decoder.depth):
            if index in self.tapped:
                self.entering[index] = rows  # keeps its memory from the later blocks
            rows = decoder.block(index, rows, rotation, self._attention)
        if decoder.depth in self.tapped:
            self.entering[decoder.depth] = rows
        self.hidden = decoder.norm(rows)
        self.logits = decoder.logits(self.hidden)[:, : self.vocabulary]
        likeliest = torch.argmax(self.logits, -1, out=table[0] if self.chained and self.inputs is None else None)
        self.tokens = likeliest
        if self.inputs is not None:
            out = table[0] if self.chained else None
            self.tokens = torch.index_select(self.inputs.ids, 0, likeliest, out=out)
        if not self.chained:
            return
        if self.states is not None:
            self.states.copy_(rows)
        table.add_(self._advance)
        # The tokens stay, also those of rows that become idle.
        torch.where(table[-1] > 0, table[1:], self._idle_table[1:], out=table[1:])

    @property
    def tokens_seen(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens of the rows, the first row of each one's sequence, and the rows from there that each sees, as bits."""
        return self.table[0], self.table[self._slot + 4], self.table[self._slot + 5]


#: The rows of one sequence: its span, its entries before the pass, tokens, and parents as in ``Rows``.
TableRows: TypeAlias = tuple[KVSpan, int, Sequence[int], Sequence[int] | None]


def table_columns(batch: Sequence[TableRows], axes: int, idle: np.ndarray, *, both_ways: bool = False) -> np.ndarray:
    """Return :attr:`GraphStep.table` for the rows of a pass.

    Args:
        batch: the rows of each sequence, which notes its entries if this is its first replayed pass.
        axes: axes of rotary positions.
        idle: table of a pass without rows.
        both_ways: True if all rows of a sequence see each other.
    """
    tokens, counts, shared, first = list[int](), list[int](), list[int](), 0
    trees: list[tuple[int, int, Sequence[int]]] = []
    for span, length, token_ids, parents in batch:
        count = len(token_ids)
        end = length + count
        if end > span.room:
            span.check_room(end - span.length)
        if not span.split:
            span.split = length + 1
        common = length
        if parents is not None:
            common = end - len(parents)
            trees.append((first, count, parents))
        # Fractions of a position (Qwen3-Omni) are those of stock blocks, which are not replayed.
        start, split, offset = span.start, span.split, int(span.offset)
        shared += common, end, start, first, split, length - first, start + length - first, offset
        counts.append(count)
        tokens += token_ids
        first += count
    of_rows = np.array(shared).reshape(-1, 8).repeat(counts, 0).T
    row = np.arange(first)
    places = of_rows[5] + row
    sees = _CAUSAL[np.array(counts).repeat(counts) - 1 if both_ways else row - of_rows[3]]
    for at, count, parents in trees:
        part, read = slice(at, at + count), len(parents) - count
        depths, bits = tree_columns(tuple(parents))
        places[part], sees[part] = of_rows[0, at] + depths[read:], bits[read:]
    table, slot = idle.copy(), 2 + axes
    table[0, :first] = tokens
    table[1 : slot - 1, :first] = places + of_rows[7]
    table[slot - 1, :first] = places
    table[slot, :first] = of_rows[6] + row
    table[slot + 1 : slot + 5, :first] = of_rows[:4]
    table[slot + 5, :first], table[slot + 6, :first] = sees, of_rows[4]
    return table


def chained_columns(
    table: np.ndarray, last: Sequence[int], left: Sequence[int], axes: int, idle: np.ndarray
) -> np.ndarray:
    """Return :attr:`GraphStep.table` of a chained pass, whose tokens are on the device.

    Args:
        table: of the chains' first pass.
        last: last row of each chain in it.
        left: number of tokens that each reads.
        axes, idle: see :func:`table_columns`.
    """
    columns, count, slot = table[:, last], len(last), 2 + axes
    columns[1 : slot + 1] += 1
    columns[slot + 1] = columns[slot - 1]
    columns[slot + 2] += 1
    columns[slot + 4], columns[slot + 5] = range(count), 1
    table = idle.copy()
    table[:-1, :count], table[-1, :count] = columns, left
    return table


@lru_cache(256)
def tree_columns(parents: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the depth of each node and the nodes that it sees, see :func:`_visible_bits`."""
    depths: list[int] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"node {node} of a tree cannot follow node {parent}")
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return np.array(depths), np.array(_visible_bits(parents))


def _visible_bits(parents: Sequence[int]) -> list[int]:
    """Return the nodes that each node sees, its ancestors and itself, as bits of a signed number."""
    seen: list[int] = []
    for node, parent in enumerate(parents):
        seen.append((seen[parent] if parent >= 0 else 0) | 1 << node)
    return [bits - (1 << MOST) if bits >> (MOST - 1) else bits for bits in seen]


#: Bits of a chain, whose nodes see all before them.
_CAUSAL = np.array(_visible_bits(range(-1, MOST - 1)))


def _idle_table(slab: Slab, axes: int, count: int) -> np.ndarray:
    """Return the table of a chained pass of idle rows, which write to the slab's scratch entry."""
    columns = [[0, *[0] * axes, 0, slab.capacity, 0, 1, slab.capacity, place, 1, 0, 0] for place in range(count)]
    return np.ascontiguousarray(np.array(columns).T)
