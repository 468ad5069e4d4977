"""A clip's text so far, and the changes of logits that depend on it: penalties, a grammar."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch


class HistoryRows(NamedTuple):
    """Rows of a pass whose logits one history changes.

    Attributes:
        history: the text before them.
        paths: for each row the drafted tokens between that text and the token the row chooses.
        first: index of the first row in the pass.
    """

    history: TextHistory
    paths: Sequence[Sequence[int]]
    first: int


class TextHistory(ABC):
    """Token ids of one clip so far, and what they mean for the logits of the next ones."""

    @property
    def parts(self) -> tuple[TextHistory, ...]:
        """The histories whose changes are made in order: itself."""
        return (self,)

    @abstractmethod
    def add(self, token_ids: Sequence[int]) -> None:
        """Append emitted tokens."""

    @abstractmethod
    def before(self, count: int) -> TextHistory:
        """Return the history of the text without its last ``count`` tokens."""

    @classmethod
    @abstractmethod
    def apply(cls, batch: Sequence[HistoryRows], logits: torch.Tensor, tokens: torch.Tensor | None) -> None:
        """Change rows of any number of clips in place.

        Args:
            batch: the rows, in order; their histories are of this class.
            logits: (R, V) float32 of the whole pass.
            tokens: (V,) the token id of each logit, if it is not its index.
        """

    def changes_for_paths(self, paths: Sequence[Sequence[int]], tokens: torch.Tensor | None = None) -> RowChanges:
        """Return the changes of the last ``len(paths)`` rows of a pass.

        Args:
            paths: for each of these rows the drafted tokens between the emitted text and the token it chooses.
            tokens: (V,) the token id of each logit, if it is not its index.
        """
        return RowChanges(self, paths, tokens)

    def changes_for_unread(self, unread: Sequence[int]) -> RowChanges:
        """Return the changes of rows of ``unread``, the last emitted tokens, each with the text up to its token."""
        if len(unread) == 1:
            return self.changes_for_paths([()])
        return self.before(len(unread)).changes_for_paths([unread[: row + 1] for row in range(len(unread))])


class CombinedHistory(TextHistory):
    """Several histories of one text, whose changes are made in order.

    Args:
        histories: at least one, none combined.
    """

    def __init__(self, histories: Sequence[TextHistory]) -> None:
        self.histories = tuple(histories)

    @property
    def parts(self) -> tuple[TextHistory, ...]:
        return self.histories

    def add(self, token_ids: Sequence[int]) -> None:
        for history in self.histories:
            history.add(token_ids)

    def before(self, count: int) -> TextHistory:
        return CombinedHistory([history.before(count) for history in self.histories])

    @classmethod
    def apply(cls, batch: Sequence[HistoryRows], logits: torch.Tensor, tokens: torch.Tensor | None) -> None:
        raise NotImplementedError("its parts are applied")


class RowChanges(NamedTuple):
    """Changes of the last rows that one sequence has in a pass, see :meth:`TextHistory.changes_for_paths`."""

    history: TextHistory
    paths: Sequence[Sequence[int]]
    tokens: torch.Tensor | None = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, V) of one sequence's rows in float32, changed."""
        return change_rows([(self, len(logits))], logits)


@torch.inference_mode()
def change_rows(changes: Sequence[tuple[RowChanges, int]], logits: torch.Tensor) -> torch.Tensor:
    """Return the logits (R, V) of a pass in float32 with the changes of all sequences, computed together.

    Args:
        changes: in the order of the rows; for each sequence the index after its last row.
        logits: of the pass.
    """
    changed = logits.to(torch.float32, copy=True)
    for order in range(max(len(change.history.parts) for change, _ in changes)):
        rows = [
            (HistoryRows(change.history.parts[order], change.paths, end - len(change.paths)), change.tokens)
            for change, end in changes
            if order < len(change.history.parts)
        ]
        for (kind, _), group in groupby(rows, lambda pair: (type(pair[0].history), id(pair[1]))):
            batch = list(group)
            kind.apply([one for one, _ in batch], changed, batch[0][1])
    return changed
