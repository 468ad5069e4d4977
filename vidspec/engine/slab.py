"""The KV cache of one model: one slab with a contiguous span for each sequence."""

from __future__ import annotations

import copy
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import lt
from typing import TYPE_CHECKING

import numpy as np
import torch

from vidspec import memory
from vidspec.engine.device import slab_budget, to_device
from vidspec.engine.huge_pages import empty_in_huge_pages
from vidspec.errors import GenerationError

if TYPE_CHECKING:
    from vidspec.engine.recurrent import RecurrentStates

#: Fewest entries by which a slab on a device grows, and the factor on all: each growth copies the entries in use and
#: invalidates all captured passes, and a new size for every clip would fragment a device's memory.
_STEP, _GROWTH = 1024, 1.5
#: Share of a CPU's free memory that a slab may take for entries which nobody asked for yet.
_SPARE = 0.1
#: Most entries that move at a time: their copies take memory in all layers.
_MOVED = 512

#: Keys, or values, of each layer that rows of a pass read: (1, kv_heads, length, d).
LayerTensors = Sequence[torch.Tensor]


class Slab:
    """Keys and values of each layer, (kv_heads, capacity, d); heads and d may differ between layers.

    It grows when no gap is long enough, by copying the entries in use; sequences are not affected. Unused entries are
    undefined and get overwritten.

    Args:
        heads: KV heads of every layer, or of each.
        width: d, the size of a key and of a value, of every layer, or of each.
        dtype: dtype of keys and values.
        devices: device of each layer.
        budget: bytes of all layers together; if None by the free memory of a GPU, and no limit on a CPU.
    """

    def __init__(
        self,
        heads: int | Sequence[int],
        width: int | Sequence[int],
        dtype: torch.dtype,
        devices: Sequence[torch.device],
        budget: int | None = None,
    ) -> None:
        self.dtype = dtype
        self.budget = slab_budget(Counter(devices)) if budget is None else budget
        each = [[sizes] * len(devices) if isinstance(sizes, int) else sizes for sizes in (heads, width)]
        self._places = [(*place, len(list(run))) for place, run in groupby(zip(devices, *each, strict=True))]
        self.capacity = 0
        self._blocks = self._allocate_blocks(0)
        self._used: dict[int, int] = {}  # start -> end of each span
        self._moves: dict[int, int] = {}  # entries to move before the next access: new place -> old one, not before it
        self._lock = threading.RLock()  # a forgotten span is freed by whichever thread collects it
        #: Number of times the entries moved, which invalidates passes captured with their addresses.
        self.version = 0
        #: Callbacks before the entries move, so that nothing holds the old ones; by their holder.
        self.before_move: dict[object, Callable[[], None]] = {}

    def __len__(self) -> int:
        """Return the number of layers."""
        return sum(count for *_, count in self._places)

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry in all layers, keys and values."""
        numbers = sum(2 * count * heads * width for _, heads, width, count in self._places)
        return int(numbers * self.dtype.itemsize)

    @property
    def shares(self) -> dict[torch.device, float]:
        """Share of an entry on each device."""
        shares: dict[torch.device, float] = {}
        for device, heads, width, count in self._places:
            numbers = 2 * count * heads * width * self.dtype.itemsize
            shares[device] = shares.get(device, 0.0) + numbers / self.entry_bytes
        return shares

    @property
    def used(self) -> int:
        """Entries that belong to sequences."""
        with self._lock:
            return sum(end - start for start, end in self._used.items())

    def open(self, room: int, offset: float = 0) -> KVSpan:
        """Open an empty sequence; see :class:`KVSpan`."""
        return KVSpan(self, room, offset)

    def _allocate(self, room: int) -> int:
        """Return the first of ``room`` entries in a row, which belong to a sequence now."""
        with self._lock:
            start = self._first_gap(room)
            if start + room > self.capacity:
                self._grow(start, start + room)
            self._used[start] = start + room
        return start

    def _first_gap(self, room: int) -> int:
        """Return the first entry of a new span: in the first gap that is long enough, else after all others."""
        end = 0
        for start in sorted(self._used):
            if start - end >= room:
                return end
            end = self._used[start]
        return end

    def growth_bytes(self, room: int) -> int:
        """Return the bytes by which the slab would grow for a sequence of ``room`` entries."""
        with self._lock:
            if (end := self._first_gap(room) + room) <= self.capacity:
                return 0
            capacity = end if self._on_device else self._grown_capacity(end)
        return (capacity if self._used else end - self.capacity) * self.entry_bytes  # what is in use is copied

    def reserve(self, entries: int) -> None:
        """Grow to ``entries`` entries in all if there is memory; no effect on a CPU."""
        with self._lock, suppress(GenerationError, torch.OutOfMemoryError):
            if entries > self.capacity and self._on_device:
                self._grow(max(self._used.values(), default=0), entries)

    @property
    def _on_device(self) -> bool:
        return any(device.type != "cpu" for device, *_ in self._places)

    def _grown_capacity(self, wanted: int) -> int:
        """Return the capacity of a slab that must hold ``wanted`` entries.

        A lone sequence on a CPU gets what it needs: the old entries need no copy.
        """
        grown = max(wanted, int(_GROWTH * self.capacity))
        if self._on_device:
            return -(-grown // _STEP) * _STEP
        free = memory.available_memory() if self._used and grown > wanted else None
        spare = (grown - wanted) * self.entry_bytes
        return grown if self._used and (free is None or spare <= _SPARE * free) else wanted

    @torch.inference_mode()
    def _grow(self, used: int, wanted: int) -> None:
        capacity = self._grown_capacity(wanted)
        if self.budget is not None and capacity * self.entry_bytes > self.budget:
            capacity = wanted
            if capacity * self.entry_bytes > self.budget:
                raise GenerationError(
                    f"{wanted} entries of the KV cache need {capacity * self.entry_bytes / 1e9:.1f} GB, "
                    f"{self.budget / 1e9:.1f} GB are allowed",
                    hint="take fewer --frames, or caption fewer clips at once",
                    kind="memory",
                )
        self.move_entries()
        for callback in self.before_move.values():
            callback()
        old = self._blocks
        if not self._used:  # the new slab may take the old one's memory
            self._blocks, self.capacity = self._allocate_blocks(0), 0
            old = self._blocks
        try:
            blocks = self._allocate_blocks(capacity)
        except torch.OutOfMemoryError:
            blocks, capacity = self._allocate_blocks(wanted), wanted
        for new, block in zip(blocks, old, strict=False):
            new[..., :used, :] = block[..., :used, :]
        self._blocks, self.capacity = blocks, capacity
        self.version += 1

    @torch.inference_mode()
    def _allocate_blocks(self, capacity: int) -> list[torch.Tensor]:
        rows = capacity + 1  # the last is the scratch entry: padding of a pass is written there
        return [
            empty_in_huge_pages((count, 2, heads, rows, width), self.dtype)
            if device.type == "cpu"
            else torch.empty(count, 2, heads, rows, width, dtype=self.dtype, device=device)
            for device, heads, width, count in self._places
        ]

    def _release(self, start: int) -> None:
        with self._lock:
            self._used.pop(start, None)

    def plan_moves(self, places: Sequence[int], start: int) -> None:
        """Move entries to ``start`` and after it, with the next :meth:`move_entries`.

        Args:
            places: the entries, increasing, the first at ``start`` or after it.
            start: new place of the first.
        """
        moves = {new: self._moves.get(old, old) for new, old in enumerate(places, start)}
        self._moves.update({new: old for new, old in moves.items() if new != old})

    def planned_moves(self) -> np.ndarray:
        """Return (M, 2) int64, the planned moves in order: new place and old one of an entry."""
        return np.array(sorted(self._moves.items()), np.int64).reshape(-1, 2)

    @torch.inference_mode()
    def move_entries(self, planned: torch.Tensor | None = None) -> None:
        """Make all planned moves, in one gather for all layers and sequences; access to entries begins with it.

        Args:
            planned: :meth:`planned_moves` on the device of all layers, if they are there already.
        """
        if not self._moves:
            return
        devices = {block.device for block in self._blocks}
        if planned is None:
            host = torch.from_numpy(self.planned_moves())
            places = {device: to_device(host, device) for device in devices}
        else:
            places = dict.fromkeys(devices, planned)
        count, self._moves = len(self._moves), {}
        for first in range(0, count, _MOVED):  # no move overwrites an entry of a later one
            for block in self._blocks:
                new, old = places[block.device][first : first + _MOVED].unbind(1)
                block.index_copy_(3, new, block.index_select(3, old))

    def layers(self, start: int, end: int) -> list[torch.Tensor]:
        """Return the entries of every layer: (2, kv_heads, end - start, d), keys first."""
        self.move_entries()
        return [layer for block in self._blocks for layer in block[..., start:end, :].unbind(0)]

    def write(self, slots: torch.Tensor, entries: torch.Tensor) -> None:
        """Write entries of all layers, which are alike and on one device.

        Args:
            slots: (n,) int64 the entries to write, of any sequences.
            entries: (layers, 2, kv_heads, n, d) keys and values.
        """
        self.move_entries()
        (block,) = self._blocks
        block.index_copy_(3, slots, entries)

    def keys_and_values(self, start: int, end: int) -> tuple[LayerTensors, LayerTensors]:
        """Return the keys and the values of every layer, each (1, kv_heads, end - start, d)."""
        self.move_entries()
        parts = [block[..., start:end, :] for block in self._blocks]
        keys, values = ([layer for part in parts for layer in part[:, one, None].unbind(0)] for one in (0, 1))
        return keys, values


class KVSpan:
    """One sequence's contiguous part of a slab, from its construction until it is freed or deleted.

    Rollback moves a counter: rejected entries stay where they are, are never read again and are overwritten by the
    next tokens.

    Args:
        slab: slab of the span.
        room: the most entries it will ever have: prompt, max_new_tokens and one window.
        offset: see the attribute.

    Attributes:
        start: its first entry.
        length: entries in use.
        offset: the rotary position of the entry at index i, prompt excluded, is ``i + offset``: kept visual tokens
            keep their positions, so a pruned prompt is shorter than the position that follows it.
        free: releases the entries; so does deleting the span.
        states: states of recurrent layers; None if there are none.
        source: the sequence that owns the entries, see :meth:`make_follower`; None for a sequence with its own.
        split: entries in its first replayed pass, by which its keys are split over a device; 0 before it.

    Raises:
        GenerationError: the slab would exceed its budget.
    """

    states: RecurrentStates | None = None
    source: KVSpan | None = None
    split: int = 0

    def __init__(self, slab: Slab, room: int, offset: float = 0) -> None:
        self.slab, self.room, self.offset, self.length = slab, room, offset, 0
        self.start = slab._allocate(room)
        self.free: weakref.finalize[..., KVSpan] = weakref.finalize(self, slab._release, self.start)
        self.free.atexit = False

    def make_follower(self) -> KVSpan:
        """Return a sequence over the same entries with a length of its own.

        Its rows are written after this sequence's, which overwrites them when it continues. Call :meth:`is_follower`
        to update its length; neither sequence may roll back or gather.

        Raises:
            ValueError: recurrent layers have states, which a second sequence would change.
        """
        if self.states is not None:
            raise ValueError("states of recurrent layers cannot be shared")
        other = copy.copy(self)
        other.source, other.split = self, 0
        return other

    def is_follower(self) -> bool:
        """Return True for a follower, after setting its length to that of the followed sequence."""
        if self.source is not None:
            self.length = self.source.length
        return self.source is not None

    def check_room(self, rows: int) -> None:
        """Raise IndexError if there is no room for ``rows`` more entries."""
        if self.length + rows > self.room:
            raise IndexError(f"a sequence of {self.room} entries cannot take {self.length + rows}")

    def entries_to_write(self, rows: int) -> list[torch.Tensor]:
        """Return the next ``rows`` entries of every layer: (2, kv_heads, rows, d).

        Raises:
            IndexError: there is no room for them.
        """
        self.check_room(rows)
        return self.slab.layers(self.start + self.length, self.start + self.length + rows)

    def entries_to_read(self, rows: int) -> tuple[LayerTensors, LayerTensors]:
        """Return keys and values of every layer, the next ``rows`` entries included."""
        return self.slab.keys_and_values(self.start, self.start + self.length + rows)

    def rollback(self, length: int) -> None:
        """Forget every entry from ``length`` on.

        Raises:
            ValueError: ``length`` is negative or beyond the entries in use.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot roll back a sequence of {self.length} entries to {length}")
        self.length = length

    def gather(self, start: int, kept: Sequence[int]) -> None:
        """Keep, of the entries from ``start`` on, only those at ``start + kept[i]``, in that order.

        They move before entries of the slab are read or written again, together with those of other sequences.

        Args:
            start: entries before it stay as they are.
            kept: K increasing offsets from ``start``, each below ``length - start``.

        Raises:
            ValueError: ``start`` or an offset is beyond the entries in use, or offsets do not increase.
        """
        if self.states is not None and list(kept) != list(range(len(kept))):
            raise ValueError("a recurrent layer has one past: no trees")
        if not 0 <= start <= self.length:
            raise ValueError(f"cannot gather from {start} on in a sequence of {self.length} entries")
        if kept and (kept[0] < 0 or kept[-1] >= self.length - start):
            raise ValueError(f"offsets beyond the {self.length - start} entries from {start} on")
        if not all(map(lt, kept, kept[1:])):
            raise ValueError("offsets must increase")
        first = self.start + start
        self.slab.plan_moves([first + offset for offset in kept], first)
        self.length = start + len(kept)

    @torch.inference_mode()
    def select(self, rows: torch.Tensor | Sequence[torch.Tensor], room: int) -> KVSpan:
        """Copy some entries into a new sequence in the same slab.

        Args:
            rows: (K,) entries for all layers, in the order of the new sequence; or for each layer (kv_heads, K), chosen
                for each head, with the same K for all layers.
            room: most entries of the new sequence, at least K.

        Raises:
            ValueError: an entry is not in use, or K exceeds the room; or recurrent layers have states, which belong to
                all entries.
        """
        if self.states is not None and not (
            isinstance(rows, torch.Tensor) and torch.equal(rows.cpu(), torch.arange(self.length))
        ):
            raise ValueError("states of recurrent layers cannot be selected from")
        index_of_layers = [rows[None]] * len(self.slab) if isinstance(rows, torch.Tensor) else rows
        count = index_of_layers[0].shape[-1]
        if count > room or any(
            int(index.max()) >= self.length
            for index in index_of_layers[: 1 if index_of_layers[0] is index_of_layers[-1] else None]
        ):
            raise ValueError(f"cannot select {count} of {self.length} entries into {room}")
        chosen = self.slab.open(room)
        layers = self.slab.layers(self.start, self.start + self.length)
        for old, new, index in zip(layers, chosen.entries_to_write(count), index_of_layers, strict=True):
            new.copy_(old.take_along_dim(index.to(old.device)[None, :, :, None], dim=2))
        chosen.length = count
        chosen.states = None if self.states is None else self.states.copy()
        return chosen
