"""States that a draft head reads with its tokens, gathered for all rows of a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from vidspec.engine.device import to_device

if TYPE_CHECKING:
    from vidspec.engine.rows import Rows

__all__ = ["StateInputs"]


@dataclass(frozen=True)
class StateInputs:
    """Properties of a decoder whose token rows are embeddings joined with states.

    Attributes:
        width: of a state.
        project: maps the target's states (n, any) to those that the head reads, (n, width).
        ids: (vocabulary,) the target's id of each logit, on the head's device.
    """

    width: int
    project: Callable[[torch.Tensor], torch.Tensor]
    ids: torch.Tensor

    @cached_property
    def marked(self) -> int:
        """Size of a vocabulary that holds all of ``ids``, for the marks of penalties."""
        return int(self.ids.max()) + 1

    def gather(self, batch: Sequence[Rows], out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the states (R, width) of a pass's token rows: one projection and one gather for all sequences.

        Args:
            batch: the rows of each sequence.
            out: receives the states.
        """
        needed = [state for rows in batch for state in rows.head_states]
        sources = {id(state.states): state for state in needed}
        targets = [state.states for state in sources.values() if not state.own]
        owns = [state.states for state in sources.values() if state.own]
        starts, start = dict[int, int](), 0
        for states in (*targets, *owns):
            starts[id(states)] = start
            start += len(states)
        projected = [self.project(_concatenate(targets))] if targets else []
        every = _concatenate([*projected, *owns])
        index = torch.tensor([starts[id(state.states)] + state.row for state in needed])
        return torch.index_select(every, 0, to_device(index, every.device), out=out)


def _concatenate(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
