"""Constrained decoding: texts that follow a grammar, token by token.

``llguidance`` parses the text and returns the tokens that may follow it; the logits of all others become -inf, for
each row of a window with the drafted tokens before it and for each node of a tree with its path. Target and draft are
masked alike, so verification is exact for the masked distributions (:mod:`vidspec.acceptance.rules.exact`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
import torch

from vidspec.engine.device import to_device
from vidspec.engine.history import HistoryRows, TextHistory
from vidspec.errors import GenerationError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


class GrammarHistory(TextHistory):
    """The text of one clip so far, and the tokens that a grammar allows after it.

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
