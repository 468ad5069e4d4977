"""Constrained decoding: texts that follow a grammar, token by token.

``llguidance`` parses the text and returns the tokens that may follow it; the logits of all others become -inf, for
each row of a window with the drafted tokens before it and for each node of a tree with its path. Target and draft are
masked alike, so verification is exact for the masked distributions (:mod:`vidspec.acceptance.exact`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from vidspec.engine.device import to_device
from vidspec.engine.history import HistoryRows, TextHistory

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

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

    def before(self, count: int) -> GrammarHistory:
        earlier = GrammarHistory.__new__(GrammarHistory)
        earlier._matcher = self._matcher.deep_copy()
        earlier._matcher.rollback(count)
        return earlier

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
        """Return (V,) bool: the tokens that may follow the text and ``path``; None if the path itself may not."""
        consumed = self._matcher.try_consume_tokens(list(path))
        try:
            if consumed < len(path):
                return None  # a row after a token that the target cannot choose
            packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        finally:
            self._matcher.rollback(consumed)
        return torch.from_numpy(np.unpackbits(packed, bitorder="little").astype(bool))
