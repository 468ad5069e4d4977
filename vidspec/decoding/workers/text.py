"""The draft's text in the parallel schedule, and its KV cache; one token per pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vidspec.drafting.chain import greedy_chain
from vidspec.engine.forward import Engine
from vidspec.engine.history import TextHistory
from vidspec.engine.requests import Steps
from vidspec.engine.rows import PrefillResult
from vidspec.errors import GenerationError

__all__ = ["DraftText"]


class DraftText:
    """Greedy continuation that can be cut back to any length.

    Args:
        engine: engine of the drafting model.
        prefill: result of the prompt's prefill.
        history: after the prompt, for penalties and a grammar; it grows with the text. None without either.
    """

    def __init__(self, engine: Engine, prefill: PrefillResult, history: TextHistory | None = None) -> None:
        self.engine, self.prefill, self.span, self.history = engine, prefill, prefill.span, history
        self.tokens: list[int] = []
        self.forwards = 0
        self._prompt = self.span.length
        self._recorded = 0  # tokens of the text that the history has

    def extend(self) -> Steps[int]:
        """Propose one more token: from the prompt's last logits at first, then from a pass over the unread tokens.

        If it is abandoned before its request is answered, nothing changes.
        """
        unread = self.tokens[self.span.length - self._prompt :]
        path = self._record()
        if unread:
            self.tokens += yield from greedy_chain(self.engine, self.span, unread, 1, self.history, path)
            self.forwards += 1
        else:
            logits = self.prefill.logits
            if self.history is not None:
                logits = self.history.changes_for_paths([()])(logits[None])
            self.tokens.append(int(logits.argmax()))
        return self.tokens[-1]

    def _record(self) -> Sequence[int]:
        """Add the new tokens to the history, and return those that it cannot take.

        A draft whose vocabulary has no token that the grammar allows proposes another, which will be rejected.
        """
        history = self.history
        for token in self.tokens[self._recorded :] if history is not None else ():
            assert history is not None
            try:
                history.add([token])
            except GenerationError:
                break
            self._recorded += 1
        return self.tokens[self._recorded :]

    def prune(self, rows: torch.Tensor) -> None:
        """Drop the prompt's entries except those at ``rows`` (K,), sorted, for good.

        They and all later entries keep their positions. Drafted tokens stay, with their entries as computed from the
        whole prompt.
        """
        self.span.offset += self._prompt - len(rows)
        self.span.gather(0, [*rows.tolist(), *range(self._prompt, self.span.length)])
        self._prompt = len(rows)

    def cut(self, keep: int, tokens: Sequence[int]) -> None:
        """Set the text to its first ``keep`` tokens and then ``tokens``.

        Raises:
            ValueError: the text is shorter than ``keep``.
        """
        if not 0 <= keep <= len(self.tokens):
            raise ValueError(f"cannot keep {keep} of {len(self.tokens)} tokens")
        if self.history is not None and keep < self._recorded:
            self.history, self._recorded = self.history.before(self._recorded - keep), keep
        self.tokens[keep:] = tokens
        read = self.span.length - self._prompt
        # At least one token must stay unread: logits come from the pass over it.
        self.span.rollback(self._prompt + min(read, keep, max(0, len(self.tokens) - 1)))
