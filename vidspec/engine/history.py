"""A clip's text so far, as logits processors that depend on it see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from vidspec.engine.rows import Processor

__all__ = ["CombinedHistory", "TextHistory"]


class TextHistory(ABC):
    """Token ids of one clip so far, and what they mean for the logits of the next ones: penalties, a grammar."""

    @abstractmethod
    def add(self, token_ids: Sequence[int]) -> None:
        """Append emitted tokens."""

    @abstractmethod
    def changes_for_paths(self, paths: Sequence[Sequence[int]], tokens: torch.Tensor | None = None) -> Processor:
        """Return the processor of the last ``len(paths)`` rows of a pass.

        Args:
            paths: for each of these rows the drafted tokens between the emitted text and the token it chooses.
            tokens: (V,) the token id of each logit, if it is not its index.
        """

    @abstractmethod
    def changes_for_unread(self, unread: Sequence[int]) -> Processor:
        """Return the processor of rows of ``unread``, the last emitted tokens, each with the text up to its token."""


class CombinedHistory(TextHistory):
    """Several histories of one text, whose changes are made in order.

    Args:
        histories: at least one.
    """

    def __init__(self, histories: Sequence[TextHistory]) -> None:
        self.histories = tuple(histories)

    def add(self, token_ids: Sequence[int]) -> None:
        for history in self.histories:
            history.add(token_ids)

    def changes_for_paths(self, paths: Sequence[Sequence[int]], tokens: torch.Tensor | None = None) -> Processor:
        return _chain([history.changes_for_paths(paths, tokens) for history in self.histories])

    def changes_for_unread(self, unread: Sequence[int]) -> Processor:
        return _chain([history.changes_for_unread(unread) for history in self.histories])


def _chain(processors: Sequence[Processor]) -> Processor:
    return lambda logits: reduce(lambda changed, processor: processor(changed), processors, logits)
