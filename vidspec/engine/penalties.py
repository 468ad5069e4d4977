"""Penalties on repeated tokens: logits processors that depend on the text before each row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from vidspec.engine.device import to_device
from vidspec.engine.history import TextHistory

if TYPE_CHECKING:
    from vidspec.engine.rows import Processor

__all__ = ["Penalties", "PenaltyHistory"]


@dataclass(frozen=True)
class Penalties:
    """Penalties on tokens, applied in this order to logits in float32.

    Attributes:
        repetition_penalty: for tokens in prompt and text, positive logits are divided by it and negative ones
            multiplied (``RepetitionPenaltyLogitsProcessor`` of transformers); 1 for none.
        presence_penalty: subtracted once from the logit of each token in the text, the prompt left out (OpenAI, vLLM);
            0 for none.
        no_repeat_ngram: length of token runs that may not occur twice in prompt and text
            (``NoRepeatNGramLogitsProcessor``); 0 for any.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    no_repeat_ngram: int = 0


class PenaltyHistory(TextHistory):
    """Token ids of one clip so far, and the penalties on the next ones.

    Args:
        penalties: at least one.
        prompt: ids of the whole prompt, placeholders of visual tokens included, as transformers counts them.
    """

    def __init__(self, penalties: Penalties, prompt: Sequence[int]) -> None:
        self.penalties = penalties
        self._ids: list[int] = []
        self._known: set[int] = set()
        self._following: dict[tuple[int, ...], set[int]] = {}  # last tokens of n-grams by the tokens before them
        self.add(prompt)
        self._prompt = len(prompt)

    def add(self, token_ids: Sequence[int]) -> None:
        start, size = len(self._ids), self.penalties.no_repeat_ngram
        self._ids += token_ids
        self._known.update(token_ids)
        for end in range(max(size, start + 1), len(self._ids) + 1) if size else ():
            *before, token = self._ids[end - size : end]
            self._following.setdefault(tuple(before), set()).add(token)

    def changes_for_paths(self, paths: Sequence[Sequence[int]], tokens: torch.Tensor | None = None) -> Processor:
        return partial(self._apply, paths, tokens)

    def changes_for_unread(self, unread: Sequence[int]) -> Processor:
        if len(unread) == 1:
            return self.changes_for_paths([()])
        ids = self._ids[: len(self._ids) - len(unread)]
        earlier = PenaltyHistory(self.penalties, ids[: self._prompt])
        earlier.add(ids[self._prompt :])
        return earlier.changes_for_paths([unread[: row + 1] for row in range(len(unread))])

    def _apply(self, paths: Sequence[Sequence[int]], tokens: torch.Tensor | None, logits: torch.Tensor) -> torch.Tensor:
        penalties = self.penalties
        changed = logits.to(torch.float32, copy=True)
        rows = changed[len(changed) - len(paths) :]
        if (factor := penalties.repetition_penalty) != 1:
            seen = _token_mask(rows, self._known, paths, tokens)
            rows.copy_(torch.where(seen, torch.where(rows < 0, rows * factor, rows / factor), rows))
        if penalties.presence_penalty:
            text = set(self._ids[self._prompt :])
            rows.sub_(_token_mask(rows, text, paths, tokens) * penalties.presence_penalty)
        if penalties.no_repeat_ngram:
            rows.masked_fill_(_token_mask(rows, (), list(map(self._completing_tokens, paths)), tokens), -torch.inf)
        return changed

    def _completing_tokens(self, path: Sequence[int]) -> Collection[int]:
        """Return the tokens that would complete a second occurrence of an n-gram after this text and ``path``."""
        before = self.penalties.no_repeat_ngram - 1
        near = [*self._ids[max(0, len(self._ids) - before) :], *path]
        last = near[len(near) - before :] if len(near) >= before else None
        inside = {near[at + before] for at in range(len(near) - before) if near[at : at + before] == last}
        return inside | self._following.get(tuple(last), set()) if last is not None else ()


def _token_mask(
    rows: torch.Tensor, common: Collection[int], each: Sequence[Collection[int]], tokens: torch.Tensor | None
) -> torch.Tensor:
    """Return (n, V) bool: True at ids ``common`` to all rows and at those of ``each`` row."""
    width = rows.shape[1] if tokens is None else int(tokens.max()) + 1
    marked = torch.zeros(len(rows), width, dtype=torch.bool, device=rows.device)
    known = torch.tensor([token for token in common if token < width], dtype=torch.long)
    marked[:, to_device(known, rows.device)] = True
    places = [(row, token) for row, ids in enumerate(each) for token in ids if token < width]
    row, token = to_device(torch.tensor(places, dtype=torch.long).reshape(-1, 2), rows.device).t()
    marked[row, token] = True
    return marked if tokens is None else marked[:, tokens]
