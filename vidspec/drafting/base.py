"""The drafter's contract: propose a window, then hear what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import torch

if TYPE_CHECKING:
    from vidspec.drafting.opening import Opening
    from vidspec.engine.asks import Asks
    from vidspec.models.base import Prefix

__all__ = ["Draft", "Drafter", "DrafterKind", "Learner", "RemoteKind"]


@dataclass(frozen=True)
class Draft:
    """A proposed window: a chain, or a tree of alternatives.

    Attributes:
        tokens: token ids; of a chain gamma of them or fewer.
        parents: index of each token's parent in the window, -1 for the last committed token; a chain is -1, 0, 1, ...
            Parents come before their children.
        probs: (gamma, V) the distributions a chain's tokens were drawn from; None if they were chosen greedily.
        weights: of an ensemble, how much each context counted for this window; they sum to 1.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    probs: torch.Tensor | None = None
    weights: tuple[float, ...] = ()

    @cached_property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.tokens) - 1))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """How far each token is from the last committed one; 1 for its children."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    def children(self, node: int) -> list[int]:
        """Nodes that follow ``node``; -1 for those that follow the last committed token."""
        return [index for index, parent in enumerate(self.parents) if parent == node]


class Drafter(Protocol):
    """Proposes continuations of what has been committed."""

    @property
    def forwards(self) -> int:
        """Passes of the draft model so far, prefill excluded."""
        ...

    def begin(self, token: int) -> None:
        """The target's first token, behind the prompt."""
        ...

    def propose(self, gamma: int) -> Asks[Draft] | Draft:
        """A window; no token in it is more than ``gamma`` behind the last committed one.

        A drafter that needs passes of a model is a generator here and asks for them; another returns its window.
        """
        ...

    def commit(self, path: Sequence[int], token: int) -> None:
        """Of the last window the tokens at ``path`` were emitted, then the target's own ``token``."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A drafter that learns from the target's distributions too. A schedule that passes token ids alone refuses it."""

    learns: ClassVar[Literal[True]]

    def observe(self, path: Sequence[int], token: int, target_logits: torch.Tensor) -> None:
        """How the target judged the last window; comes before its :meth:`Drafter.commit`.

        Args:
            path: indices of the window's tokens that are emitted, in order.
            token: the target's own, emitted behind them.
            target_logits: (gamma + 1, V); row 0 follows the last committed token, row i + 1 the i-th drafted one.
        """
        ...


class DrafterKind(Protocol):
    """What is registered as a drafter."""

    #: Signals of the target's prefill that it reads itself, as :class:`vidspec.pruning.base.Pruner` names them.
    needs: ClassVar[frozenset[str]]

    @classmethod
    def open(cls, clip: Opening) -> Asks[Drafter] | Drafter:
        """The drafter of one clip, its prompt read; a generator where that takes passes of a model."""
        ...


class RemoteKind(DrafterKind, Protocol):
    """A drafter that can also work in a process of its own, beside the target: it needs nothing of it but ids."""

    @classmethod
    def look(cls, clip: Opening) -> Asks[Any] | None:
        """What can be done before it is known which visual tokens may be seen."""
        ...

    @classmethod
    def prompt(cls, clip: Opening) -> Asks[Prefix] | Prefix:
        """The prompt that the draft model reads."""
        ...
