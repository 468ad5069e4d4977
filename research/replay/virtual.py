"""Parts of a simulated generation: two models' texts, the costs of their work, and blocks of time.

The sequential schedule and plain decoding run here under the virtual clock; the parallel schedule, which needs
workers, does in ``research.replay.simulated``. Pure Python.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from vidspec.events.events import Round

if TYPE_CHECKING:
    from vidspec.events.events import Origin

WorkerName: TypeAlias = Literal["target", "draft"]
Work: TypeAlias = Literal["prefill", "signals", "draft", "verify"]


class Text(Protocol):
    """Token choices of the two models."""

    def choose(self, prefix: Sequence[int]) -> int:
        """Return the target's own token after ``prefix``; called once for every needed row of a pass."""
        ...

    def propose(self, prefix: Sequence[int]) -> int:
        """Return the draft's token after ``prefix``."""
        ...


def verified(text: Text, prefix: list[int], window: Sequence[int]) -> tuple[int, int]:
    """Return the number of accepted tokens of a window after ``prefix``, and the target's token after them."""
    accepted = 0
    while (token := text.choose(prefix)) == (window[accepted] if accepted < len(window) else None):
        prefix.append(token)
        accepted += 1
    return accepted, token


class Pattern:
    """Two models defined by their agreement: ``agrees(i)`` for the token at position i.

    The target says 0, 1, 2, ...; the draft the same where they agree, and nothing right once it has gone astray. As a
    position is settled once, positions that agree independently with probability beta give an acceptance of beta.
    """

    def __init__(self, agrees: Callable[[int], bool]) -> None:
        self._agrees = agrees

    @classmethod
    def bernoulli(cls, beta: float, seed: int = 0) -> Pattern:
        """Return a pattern whose positions agree independently with probability ``beta``."""
        rng = random.Random(seed)
        drawn: list[bool] = []

        def agrees(position: int) -> bool:
            while len(drawn) <= position:
                drawn.append(rng.random() < beta)
            return drawn[position]

        return cls(agrees)

    @classmethod
    def of_lengths(cls, lengths: Sequence[int]) -> Pattern:
        """Return a pattern of recorded accepted lengths, repeated: as many tokens agree, then one does not.

        Under the parallel schedule these are run lengths, under the sequential one the accepted tokens per pass,
        where a length of gamma puts the disagreement on the bonus token that no draft proposes.
        """
        marks = [mark for length in lengths for mark in [True] * length + [False]]
        return cls(lambda position: marks[position % len(marks)])

    def choose(self, prefix: Sequence[int]) -> int:
        """See ``Text``."""
        return len(prefix)

    def propose(self, prefix: Sequence[int]) -> int:
        """See ``Text``."""
        right = not prefix or prefix[-1] >= 0
        return len(prefix) if right and self._agrees(len(prefix)) else -1 - len(prefix)


@dataclass(frozen=True)
class Costs:
    """Costs of work in seconds of virtual time; each is called for every piece of work.

    ``verify(rows)`` is a target pass, ``draft()`` a draft pass on one token, ``latency()`` the way of one message.
    The target's ``signals`` for the pruner exist that long after its prefill began, which may be after its end; None:
    the pruner asks for none.
    """

    verify: Callable[[int], float]
    draft: Callable[[], float]
    target_prefill: float = 0.0
    draft_prefill: float = 0.0
    signals: float | None = None
    latency: Callable[[], float] = lambda: 0.0


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of work of a worker; ``position`` and ``epoch`` identify the token of a draft pass."""

    worker: WorkerName
    kind: Work
    start: float
    end: float
    position: int = -1
    epoch: int = -1
    rows: int = 0


@dataclass(frozen=True)
class Run:
    """A simulated generation.

    ``times[i]`` is when round i was known, the first being that of the first token; ``blocks`` are both lanes' work.
    """

    tokens: tuple[int, ...]
    rounds: tuple[Round, ...]
    times: tuple[float, ...]
    blocks: tuple[Block, ...]
    draft_forwards: int

    @property
    def decode_s(self) -> float:
        """Time from the first emitted round to the last."""
        return self.times[-1] - self.times[0]

    @property
    def decoded(self) -> int:
        """Number of tokens after the first round's."""
        return len(self.tokens) - len(self.rounds[0].token_ids)


def simulate_sequential(text: Text, costs: Costs, *, max_new_tokens: int, gamma: int, eos: frozenset[int]) -> Run:
    """Simulate the sequential schedule under the same clock: draft a chain of gamma, verify it with gamma + 1 rows.

    ``gamma`` 0 is plain decoding. One process does it all, so that there are no messages to pay for.
    """
    now = costs.target_prefill
    blocks = [Block("target", "prefill", 0.0, now)]
    emitted = [text.choose(())]
    draft = list(emitted)
    rounds = [Round((emitted[0],), ("target",), 0, 0, 0.0, mode="prefill", gamma=gamma)]
    times = [now]
    if gamma:
        blocks.append(Block("draft", "prefill", now, now + costs.draft_prefill))
        now += costs.draft_prefill
    while len(emitted) < max_new_tokens and emitted[-1] not in eos:
        start, begun = len(emitted), now
        while len(draft) < min(start + gamma, max_new_tokens - 1) and draft[-1] not in eos:
            seconds = costs.draft()
            blocks.append(Block("draft", "draft", now, now + seconds, len(draft), len(rounds)))
            now += seconds
            draft.append(text.propose(draft))
        window = draft[start:]
        seconds = costs.verify(len(window) + 1)
        blocks.append(Block("target", "verify", now, now + seconds, start, rows=len(window) + 1))
        drafted_s, now = now - begun, now + seconds
        accepted, token = verified(text, emitted, window)
        if not (accepted and emitted[-1] in eos):
            emitted.append(token)
        draft[start + accepted :] = emitted[start + accepted :]
        tokens = tuple(emitted[start:])
        origins: list[Origin] = ["draft"] * accepted
        if len(tokens) > accepted:
            origins.append("target" if not window else "bonus" if accepted == len(window) else "correction")
        rounds.append(
            Round(
                tokens,
                tuple(origins),
                drafted=len(window),
                accepted=accepted,
                elapsed=now - times[0],
                draft_s=drafted_s,
                verify_s=seconds,
                mode="post",
                gamma=gamma,
                wasted=len(window) - accepted,
                start=start,
                epoch=len(rounds),
                rows=len(window) + 1,
            )
        )
        times.append(now)
    forwards = sum(one.drafted for one in rounds)
    return Run(tuple(emitted), tuple(rounds), tuple(times), tuple(blocks), forwards)
