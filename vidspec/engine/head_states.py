"""States that a draft head reads with its tokens, gathered for all rows of a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vidspec.engine.rows import Rows

__all__ = ["StateInputs", "state_places"]


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


def _concatenate(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
