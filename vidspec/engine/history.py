"""A clip's text so far, and the changes of logits that depend on it: bans and a grammar here, penalties elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from vidspec.engine.device import to_device
from vidspec.errors import GenerationError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


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


@dataclass(frozen=True)
class TokenBans:
    """Token ids that a text may not hold.

    Attributes:
        always: nowhere (``suppress_tokens``, and ``bad_words_ids`` of one token).
        first: not as the first token of the text (``begin_suppress_tokens``).
        runs: runs of two tokens or more that may not occur (``bad_words_ids``); a run may begin in the prompt.
    """

    always: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    runs: tuple[tuple[int, ...], ...] = ()

    @property
    def follow_text(self) -> bool:
        """True if what is banned depends on the text before."""
        return bool(self.first or self.runs)

    @cached_property
    def last_of_runs(self) -> Mapping[tuple[int, ...], Collection[int]]:
        """Last tokens of runs by the tokens before them."""
        last: dict[tuple[int, ...], set[int]] = {}
        for *before, token in self.runs:
            last.setdefault(tuple(before), set()).add(token)
        return last


def suppress(logits: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
    """Set the logits (n, V) of token ids to a number whose share of any row is 0; in place.

    The number is finite, so that the sum of a row still tells whether its logits are (:mod:`vidspec.engine.choices`).
    """
    if ids is None:
        return logits
    return logits.index_fill_(-1, ids.to(logits.device), max(-1e30, torch.finfo(logits.dtype).min))


class BanHistory(TextHistory):
    """Token ids of one clip so far, and the tokens that :class:`TokenBans` excludes after them.

    A row whose tokens would all be excluded, as after a grammar, keeps them.

    Args:
        bans: those that follow the text.
        prompt: ids of the whole prompt.
    """

    def __init__(self, bans: TokenBans, prompt: Sequence[int]) -> None:
        self.bans, self._ids, self._prompt = bans, list(prompt), len(prompt)
        self._sizes = sorted({len(before) for before in bans.last_of_runs})

    def add(self, token_ids: Sequence[int]) -> None:
        self._ids += token_ids

    def before(self, count: int) -> BanHistory:
        ids = self._ids[: len(self._ids) - count]
        earlier = BanHistory(self.bans, ids[: self._prompt])
        earlier.add(ids[self._prompt :])
        return earlier

    def banned_after(self, path: Sequence[int]) -> set[int]:
        """Return the tokens that may not follow the text and ``path``."""
        banned = set[int]() if path or len(self._ids) > self._prompt else set(self.bans.first)
        longest = self._sizes[-1] if self._sizes else 0
        near = (*self._ids[max(0, len(self._ids) - longest) :], *path)
        for size in self._sizes:
            if size <= len(near):
                banned.update(self.bans.last_of_runs.get(near[len(near) - size :], ()))
        return banned

    @classmethod
    def apply(cls, batch: Sequence[HistoryRows], logits: torch.Tensor, tokens: torch.Tensor | None) -> None:
        for history, paths, first in batch:
            assert isinstance(history, BanHistory)
            for row, path in zip(logits[first : first + len(paths)], paths, strict=True):
                if not (banned := history.banned_after(path)):
                    continue
                ids = torch.tensor(sorted(banned), device=logits.device)
                mask = torch.isin(torch.arange(len(row), device=logits.device) if tokens is None else tokens, ids)
                if bool((row.masked_fill(mask, -torch.inf) > -torch.inf).any()):
                    row.masked_fill_(mask, -torch.inf)


class GrammarHistory(TextHistory):
    """The text of one clip so far, and the tokens that a grammar allows after it.

    ``llguidance`` parses the text and returns these tokens; the logits of all others become -inf, for each row of a
    window with the drafted tokens before it and for each node of a tree with its path. Target and draft are masked
    alike, so verification is exact for the masked distributions (:mod:`vidspec.acceptance.rules.exact`).

    Args:
        tokenizer: the model's, with its end tokens.
        grammar: as ``LLMatcher`` takes it.
        begins: given for a text that begins freely: True for the free tokens after which the grammar begins.
    """

    def __init__(
        self, tokenizer: LLTokenizer, grammar: str, begins: Callable[[Sequence[int]], bool] | None = None
    ) -> None:
        from llguidance import LLMatcher

        self._matcher: LLMatcher = LLMatcher(tokenizer, grammar, log_level=0)
        self._begins, self._begun = begins, begins is None
        self._free: list[int] = []
        self._consumed = 0  # tokens of the matcher

    def add(self, token_ids: Sequence[int]) -> None:
        """Append emitted tokens.

        Raises:
            GenerationError: the grammar does not allow one of them, or exceeds a limit of ``llguidance``.
        """
        read = self._after_free_part(token_ids)
        if not self._begun:
            self._free += token_ids[: len(token_ids) - len(read or ())]
            self._begun = read is not None
        for token in read or ():
            if self._matcher.is_stopped():
                return  # tokens of the window after the end token: the text is cut there
            if not self._matcher.try_consume_tokens([token]):
                if self._matcher.is_error():
                    reason = self._matcher.get_error().partition("; consider")[0].removeprefix("Parser Error: ")
                    message = f"the schema of the answer exceeds a limit of llguidance ({reason})"
                    raise GenerationError(message, kind="json", hint="list fewer optional properties")
                raise GenerationError(f"token {token} does not follow the grammar of the answer", kind="json")
            self._consumed += 1

    def before(self, count: int) -> GrammarHistory:
        earlier, back = copy(self), min(count, self._consumed)
        earlier._matcher = self._matcher.deep_copy()
        earlier._matcher.rollback(back)
        earlier._consumed -= back
        earlier._free = self._free[: len(self._free) - (count - back)]
        earlier._begun = self._begun and (count == back or self._begins is None)
        return earlier

    def _after_free_part(self, token_ids: Sequence[int]) -> Sequence[int] | None:
        """Return the part of a continuation that the grammar reads; None if the text is still free after it."""
        if self._begun or self._begins is None:
            return token_ids
        text = list(self._free)
        for end, token in enumerate(token_ids, 1):
            text.append(token)
            if self._begins(text):
                return token_ids[end:]
        return None

    @property
    def is_complete(self) -> bool:
        """True if the text is a whole one of the grammar."""
        return self._matcher.is_accepting()

    @classmethod
    def apply(cls, batch: Sequence[HistoryRows], logits: torch.Tensor, tokens: torch.Tensor | None) -> None:
        ids = None if tokens is None else tokens.cpu()
        allowed = torch.ones(len(logits), logits.shape[1], dtype=torch.bool)
        for history, paths, first in batch:
            assert isinstance(history, GrammarHistory)
            for row, path in enumerate(paths, first):
                if (mask := history._allowed_tokens(path)) is None:
                    continue
                if ids is not None:
                    mask = mask[ids.clamp(max=len(mask) - 1)] & (ids < len(mask))
                width = min(len(mask), allowed.shape[1])
                if mask[:width].any():  # else a draft's smaller vocabulary has none, and its choice will be rejected
                    allowed[row] = False
                    allowed[row, :width] = mask[:width]
        logits.masked_fill_(~to_device(allowed, logits.device), -torch.inf)

    def _allowed_tokens(self, path: Sequence[int]) -> torch.Tensor | None:
        """Return (V,) bool: the tokens that may follow the text and ``path``; None for any, or if the path may not."""
        if (read := self._after_free_part(path)) is None:
            return None
        path, consumed = read, self._matcher.try_consume_tokens(list(read))
        try:
            if consumed < len(path):
                return None  # a row after a token that the target cannot choose
            packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        finally:
            self._matcher.rollback(consumed)
        return torch.from_numpy(np.unpackbits(packed, bitorder="little").astype(bool))
