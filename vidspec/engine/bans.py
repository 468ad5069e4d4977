"""Tokens that a checkpoint's ``generation_config.json`` bans, as ``generate`` of transformers does."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from vidspec.engine.history import HistoryRows, TextHistory


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
