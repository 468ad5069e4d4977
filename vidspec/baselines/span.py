"""KV spans whose layers hold different numbers of entries, or whose later layers read selected ones only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, overload

import torch

from vidspec.engine.slab import KVSpan, LayerTensors, Slab
from vidspec.engine.taps import Taps


class PrunedSpan(KVSpan):
    """The span of a prompt that was pruned between blocks, or of which later blocks read selected entries.

    ``length`` is that of the first layer.

    Args:
        slab: of the model.
        room: of the first layer.
        offset: see :class:`KVSpan`.
        whole: number of first layers that always read everything.

    Attributes:
        missing: by layer, rows of the prompt it has not read.
        kept: by layer, visual tokens of the prompt it reads while decoding.
        watch: observes each decoding step; None if nothing is selected while decoding.
        chosen: (K,) entries of the prompt that the layers from ``whole`` on read; None for all.
    """

    def __init__(self, slab: Slab, room: int, offset: float = 0, whole: int = 0) -> None:
        super().__init__(slab, room, offset)
        self.missing = [0] * len(slab)
        self.whole = whole
        self.kept: tuple[int, ...] = ()
        self.watch: Taps | None = None
        self.chosen: torch.Tensor | None = None
        self._prompt = 0
        self._packed: dict[int, tuple[torch.Tensor, int]] = {}  # by layer: copied entries and their number

    @property
    def lengths(self) -> tuple[int, ...]:
        """Entries in use in each layer."""
        return tuple(self.length - missing for missing in self.missing)

    def choose(self, rows: torch.Tensor, prompt: int) -> None:
        """Make the layers from ``whole`` on read only these entries of the prompt, and all after it.

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
        """Return the entries a layer reads once the next ``rows`` are written: (2, kv_heads, length, d)."""
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
        start = min(done, wanted - rows)  # copy rolled-back entries again
        packed[:, :, start:wanted] = everything[:, :, end - (wanted - start) : end]
        self._packed[layer] = packed, wanted
        return packed[:, :, :wanted]

    def rollback(self, length: int) -> None:
        """Drop the first layer's entries from ``length`` on, and as many of the last ones in every layer.

        Raises:
            ValueError: a layer has fewer entries.
        """
        forgotten = self.length - length
        if not 0 <= forgotten <= min(self.lengths):
            raise ValueError(f"cannot roll back a sequence of {self.length} entries to {length}")
        self.length = length

    def gather(self, start: int, kept: Sequence[int]) -> NoReturn:
        """Not supported: plain decoding has no paths to keep."""
        raise NotImplementedError("a pruned sequence holds no tree")

    def select(self, rows: torch.Tensor | Sequence[torch.Tensor], room: int) -> NoReturn:
        """Not supported: no drafter reads from this sequence."""
        raise NotImplementedError("layers of a pruned sequence have different entries")


class _Half(Sequence[torch.Tensor]):
    """Keys or values by layer, looked up when the layer is reached, because entries may be chosen until then."""

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
