"""What every schedule shares: the target's side of a sequence, the limits of a text, and the schedule's contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from vidspec.acceptance.base import Acceptance, Verdict
from vidspec.decoding.events import Origin, Round
from vidspec.decoding.trace import Trace
from vidspec.drafting.base import Drafter
from vidspec.engine.forward import Engine, State
from vidspec.engine.sampling import Sampling, draw

__all__ = ["Job", "Limits", "Schedule", "Target"]


@dataclass(frozen=True)
class Limits:
    """Where a text ends."""

    max_new_tokens: int
    eos: frozenset[int]

    def cut(self, token_ids: Sequence[int], emitted: int) -> tuple[list[int], bool]:
        """Shorten new tokens to what may be emitted after ``emitted`` others; True if the text ends with them."""
        room = self.max_new_tokens - emitted
        for i, token in enumerate(token_ids[:room]):
            if token in self.eos:
                return list(token_ids[: i + 1]), True
        return list(token_ids[:room]), len(token_ids) >= room


class Target:
    """The target's side of one sequence: first token, verification, rollback. Its cache holds nothing approximate.

    Args:
        engine: the target model.
        state: its prefilled prompt.
        sampling: how its own tokens are chosen.
        rng: CPU generator.
    """

    def __init__(self, engine: Engine, state: State, sampling: Sampling, rng: torch.Generator) -> None:
        self.engine, self.state, self.sampling, self.rng = engine, state, sampling, rng
        self._last = -1
        self._base = state.length

    def first(self) -> int:
        """The token that the prefill's last logits give."""
        self._last = self.choose(self.state.logits)
        return self._last

    def choose(self, logits: torch.Tensor) -> int:
        """A token from logits (V,)."""
        if self.sampling.greedy:
            return int(logits.argmax())
        return draw(self.sampling.distribution(logits[None])[0], self.rng)

    def verify(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits (len(tokens) + 1, V) of the last emitted token and a window behind it."""
        self._base = self.state.length
        return self.engine.forward(self.state, [self._last, *tokens])

    def commit(self, accepted: int, token: int) -> None:
        """Keep ``accepted`` tokens of the verified window; ``token`` follows them and is read by the next pass."""
        self.state.cache.rollback(self._base + 1 + accepted)
        self._last = token


@dataclass
class Job:
    """Everything a schedule needs for one clip."""

    target: Target
    limits: Limits
    trace: Trace
    rng: torch.Generator
    drafter: Drafter | None = None
    acceptance: Acceptance | None = None
    gamma: int = 0

    def opening(self) -> tuple[Round, bool]:
        """The round of the prefill's own token, and whether the text ends there."""
        token = self.target.first()
        _, over = self.limits.cut([token], 0)
        return Round((token,), ("target",), drafted=0, accepted=0, elapsed=0.0), over


class Schedule(Protocol):
    """Drives target and draft; yields one round per verification (or per plain step)."""

    def __call__(self, job: Job) -> Iterator[Round]: ...


def origins(verdict: Verdict, gamma: int, emitted: int) -> tuple[Origin, ...]:
    """Where the first ``emitted`` tokens of a window's outcome came from."""
    names: list[Origin] = ["draft"] * verdict.accepted
    for i in verdict.loose:
        names[i] = "loose"
    names.append("target" if gamma == 0 else "bonus" if verdict.accepted == gamma else "correction")
    return tuple(names[:emitted])
