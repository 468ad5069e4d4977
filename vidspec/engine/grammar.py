"""Constrained decoding: texts that follow a grammar, token by token.

``llguidance`` parses the text and returns the tokens that may follow it; the logits of all others become -inf, for
each row of a window with the drafted tokens before it and for each node of a tree with its path. Target and draft are
masked alike, so verification is exact for the masked distributions (:mod:`vidspec.acceptance.exact`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from vidspec.engine.history import TextHistory

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from vidspec.engine.rows import Processor

__all__ = ["GrammarHistory"]


class GrammarHistory(TextHistory):
    """The text of one clip so far, and the tokens that a grammar allows after it.

    Args:
        tokenizer: the model's, with its end tokens.
        grammar: as ``LLMatcher`` takes it.
    """

    def __init__(self, tokenizer: LLTokenizer, grammar: str) -> None:
        from llguidance import LLMatcher

        self._matcher: LLMatcher = LLMatcher(tokenizer, grammar)

    def add(self, token_ids: Sequence[int]) -> None:
        self._matcher.try_consume_tokens(list(token_ids))

    def changes_for_paths(self, paths: Sequence[Sequence[int]], tokens: torch.Tensor | None = None) -> Processor:
        return partial(self._apply, paths, tokens)

    def changes_for_unread(self, unread: Sequence[int]) -> Processor:
        if len(unread) == 1:
            return self.changes_for_paths([()])
        earlier = GrammarHistory.__new__(GrammarHistory)
        earlier._matcher = self._matcher.deep_copy()
        earlier._matcher.rollback(len(unread))
        return earlier.changes_for_paths([unread[: row + 1] for row in range(len(unread))])

    @property
    def is_complete(self) -> bool:
        """True if the text is a whole one of the grammar."""
        return self._matcher.is_accepting()

    def _apply(self, paths: Sequence[Sequence[int]], tokens: torch.Tensor | None, logits: torch.Tensor) -> torch.Tensor:
        changed = logits.to(torch.float32, copy=True)
        allowed = torch.ones(len(paths), changed.shape[1], dtype=torch.bool)
        for row, path in enumerate(paths):
            if (mask := self._allowed_tokens(path)) is None:
                continue
            if tokens is not None:
                mask = mask[tokens.cpu().clamp(max=len(mask) - 1)] & (tokens.cpu() < len(mask))
            width = min(len(mask), allowed.shape[1])
            if mask[:width].any():  # else a draft's smaller vocabulary has none, and its choice will be rejected
                allowed[row] = False
                allowed[row, :width] = mask[:width]
        changed[len(changed) - len(paths) :].masked_fill_(~allowed.to(changed.device), -torch.inf)
        return changed

    def _allowed_tokens(self, path: Sequence[int]) -> torch.Tensor | None:
        """Return (V,) bool: the tokens that may follow the text and ``path``; None if the path itself may not."""
        consumed = self._matcher.try_consume_tokens(list(path))
        try:
            if consumed < len(path):
                return None  # a row after a token that the target cannot choose
            packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        finally:
            self._matcher.rollback(consumed)
        return torch.from_numpy(np.unpackbits(packed, bitorder="little").astype(bool))
