"""Sequences whose layers hold different numbers of entries, or let later layers read a chosen part of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, overload

import torch

from vidspec.engine.slab import KVSpan, LayerTensors, Slab
from vidspec.engine.taps import Taps

__all__ = ["PrunedSpan"]


class PrunedSpan(KVSpan):
    """A sequence whose prompt was pruned between blocks, or of whose prompt the later blocks read a chosen part.

    Its ``length`` is that of the first layer.

    Args:
        slab: of the model.
        room: of the first layer.
        offset: as of every sequence.
        whole: layers that read everything whatever is chosen.

    Attributes:
        missing: of each layer how many rows of the prompt it has not read.
        kept: of each layer how many visual tokens of the prompt it reads while decoding.
        watch: observes each step of decoding; None where nothing is chosen then.
        chosen: (K,) the entries of the prompt that the layers from ``whole`` on read; None for all.
    """

    def __init__(self, slab: Slab, room: int, offset: int = 0, whole: int = 0) -> None:
        super().__init__(slab, room, offset)
        slab.allocate(self)
        self.missing = [0] * len(slab)
        self.whole = whole
        self.kept: tuple[int, ...] = ()
        self.watch: Taps | None = None
        self.chosen: torch.Tensor | None = None
        self._prompt = 0
        self._packed: dict[int, tuple[torch.Tensor, int]] = {}  # per layer its copies, and how many of them are made

    @property
    def lengths(self) -> tuple[int, ...]:
        """Entries in use in each layer."""
        return tuple(self.length - missing for missing in self.missing)

    def choose(self, rows: torch.Tensor, prompt: int) -> None:
        """Let the layers from ``whole`` on read only these entries of the prompt, and all behind it.

        Args:
            rows: (K,) sorted.
            prompt: entries of the prompt.
        """
        self.chosen, self._prompt = rows, prompt
        self._packed.clear()

    def entries_to_write(self, rows: int) -> list[torch.Tensor]:
        self.check_room(rows)
        whole = self.slab.layers(self.start, self.start + self.length + rows)
        ends = [self.length + rows - missing for missing in self.missing]
        return [layer[:, :, end - rows : end] for layer, end in zip(whole, ends, strict=True)]

    def entries_to_read(self, rows: int) -> tuple[LayerTensors, LayerTensors]:
        return _Half(self, rows, 0), _Half(self, rows, 1)

    def read(self, layer: int, rows: int) -> torch.Tensor:
        """What a layer reads once the next ``rows`` entries are written: (2, kv_heads, length, d)."""
        end = self.length + rows - self.missing[layer]
        everything = self.slab.layers(self.start, self.start + end)[layer]
        if self.chosen is None or layer < self.whole:
            return everything
        kept = self.chosen.to(everything.device)
        wanted = len(kept) + end - self._prompt
        packed, done = self._packed.get(layer, (None, 0))
        if packed is None:
            packed = everything.new_empty(
                *everything.shape[:2], len(kept) + self.room - self._prompt, everything.shape[-1]
            )
            packed[:, :, : len(kept)] = everything[:, :, kept]
            done = len(kept)
        start = min(done, wanted - rows)  # what was rolled back is read again
        packed[:, :, start:wanted] = everything[:, :, end - (wanted - start) : end]
        self._packed[layer] = packed, wanted
        return packed[:, :, :wanted]

    def rollback(self, length: int) -> None:
        """Forget, in every layer, as many of the last entries as the first has from ``length`` on.

        Raises:
            ValueError: that is more than a layer has.
        """
        forgotten = self.length - length
        if not 0 <= forgotten <= min(self.lengths):
            raise ValueError(f"cannot roll back a sequence of {self.length} entries to {length}")
        self.length = length

    def gather(self, start: int, kept: Sequence[int] | torch.Tensor) -> NoReturn:
        """Plain decoding has no paths to keep."""
        raise NotImplementedError("a pruned sequence holds no tree")

    def select(self, rows: torch.Tensor | Sequence[torch.Tensor], room: int) -> NoReturn:
        """No drafter reads from this sequence."""
        raise NotImplementedError("layers of a pruned sequence have different entries")


class _Half(Sequence[torch.Tensor]):
    """Keys or values of each layer, looked up when the layer is reached: what it reads may be chosen until then."""

    def __init__(self, span: PrunedSpan, rows: int, half: int) -> None:
        self._span, self._rows, self._half = span, rows, half

    def __len__(self) -> int:
        return len(self._span.slab)

    @overload
    def __getitem__(self, layer: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, layer: slice) -> Sequence[torch.Tensor]: ...
    def __getitem__(self, layer: int | slice) -> torch.Tensor | Sequence[torch.Tensor]:
        if isinstance(layer, slice):
            return [self[index] for index in range(*layer.indices(len(self)))]
        return self._span.read(layer, self._rows)[self._half][None]
