"""States that a draft head reads: with its tokens, gathered for all rows of a pass, or as entries before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import torch

from vidspec.engine.device import to_device
from vidspec.engine.rotary import RotaryTables

if TYPE_CHECKING:
    from vidspec.engine.rows import Rows


class ContextDecoder(Protocol):
    """A decoder whose keys and values of earlier rows come from states of the target (a block head)."""

    depth: int
    axes: int
    device: torch.device

    def rotation(self, positions: torch.Tensor) -> RotaryTables: ...

    def context(self, states: torch.Tensor) -> torch.Tensor:
        """Return the context vectors (n, hidden) of the target's states."""
        ...

    def context_entries(self, vectors: torch.Tensor, rotation: RotaryTables) -> torch.Tensor:
        """Return rotated keys and values of all blocks, (depth, 2, kv_heads, n, d), of context vectors."""
        ...


def append_context(decoder: ContextDecoder, batch: Sequence[Rows]) -> None:
    """Write keys and values of all context rows of a pass, for all sequences at once; these grow by the rows."""
    parts = [(rows.span, rows.context) for rows in batch if rows.context is not None and rows.context.row_count]
    if not parts:
        return
    device, counts = decoder.device, [context.row_count for _, context in parts]
    slots, places = list[torch.Tensor](), list[torch.Tensor]()
    for (span, context), count in zip(parts, counts, strict=True):
        span.check_room(count)
        end = span.start + span.length + count
        slots.append(torch.arange(end - count, end))
        if context.positions is None:
            first = span.length + span.offset
            places.append(torch.arange(first, first + count).expand(decoder.axes, -1))
        else:
            places.append(context.positions)
    positions = _concatenate([to_device(one, device) for one in _joined_on_host(places)], 1)
    vectors = decoder.context(_concatenate([part.to(device) for _, context in parts for part in context.states]))
    entries = decoder.context_entries(vectors, decoder.rotation(positions))
    parts[0][0].slab.write(to_device(_concatenate(slots), device), entries)
    for (span, _), count in zip(parts, counts, strict=True):
        span.length += count


def _joined_on_host(places: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return positions (axes, any) as one tensor if all are on the host: they go to a device in one copy."""
    return [_concatenate(places, 1)] if all([one.device.type == "cpu" for one in places]) else places


@dataclass(frozen=True)
class StateInputs:
    """Properties of a decoder whose token rows are embeddings joined with states.

    Attributes:
        width: of a state.
        project: maps the target's states (n, any) to those that the head reads, (n, width).
        ids: (vocabulary,) the target's id of each logit, on the head's device.
        marked: size of a vocabulary that holds all of ``ids``, for the marks of penalties.
    """

    width: int
    project: Callable[[torch.Tensor], torch.Tensor]
    ids: torch.Tensor
    marked: int

    def gather(self, batch: Sequence[Rows], index: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the states (R, width) of a pass's token rows: one projection and one gather for all sequences.

        Args:
            batch: the rows of each sequence.
            index: :func:`state_places` on the device of the states.
            out: receives the states.
        """
        targets, owns = _sources(batch)
        projected = [self.project(_concatenate(targets))] if targets else []
        return torch.index_select(_concatenate([*projected, *owns]), 0, index, out=out)


def state_places(batch: Sequence[Rows]) -> list[int]:
    """Return the place of each row's state among those of all sources."""
    starts, start = dict[int, int](), 0
    for states in chain(*_sources(batch)):
        starts[id(states)] = start
        start += len(states)
    return [starts[id(state.states)] + state.row for rows in batch for state in rows.head_states]


def _sources(batch: Sequence[Rows]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the tensors that states are gathered from, those of the target and the head's own."""
    sources = {id(state.states): state for rows in batch for state in rows.head_states}.values()
    return [one.states for one in sources if not one.own], [one.states for one in sources if one.own]


def _concatenate(parts: Sequence[torch.Tensor], axis: int = 0) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), axis)
