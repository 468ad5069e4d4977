"""The draft's text in the parallel schedule, and the cache that stands for it; one token per pass."""

from __future__ import annotations

from collections.abc import Sequence

from vidspec.engine.forward import Engine, State

__all__ = ["DraftText"]


class DraftText:
    """Greedy continuation that can be cut back anywhere.

    Args:
        engine: the drafting model.
        state: its prefilled prompt.
    """

    def __init__(self, engine: Engine, state: State) -> None:
        self.engine, self.state = engine, state
        self.tokens: list[int] = []
        self.forwards = 0
        self._prompt = state.length

    def extend(self) -> int:
        """Propose one more token: that of the prompt's last logits at first, then of a pass over what is unread."""
        unread = self.tokens[self.state.length - self._prompt :]
        if unread:
            logits = self.engine.forward(self.state, unread).logits[-1]
            self.forwards += 1
        else:
            logits = self.state.logits
        self.tokens.append(int(logits.argmax()))
        return self.tokens[-1]

    def cut(self, keep: int, tokens: Sequence[int]) -> None:
        """Make the text its first ``keep`` tokens and then ``tokens``.

        Raises:
            ValueError: the text is shorter than that.
        """
        if not 0 <= keep <= len(self.tokens):
            raise ValueError(f"cannot keep {keep} of {len(self.tokens)} tokens")
        self.tokens[keep:] = tokens
        read = self.state.length - self._prompt
        # Something must stay unread: logits come from the pass over it.
        self.state.cache.rollback(self._prompt + min(read, keep, max(0, len(self.tokens) - 1)))
