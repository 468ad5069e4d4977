"""What every schedule shares: the target's side of a sequence, and the schedule's contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vidspec.decoding.limits import Limits
from vidspec.draft_length.pace import Window
from vidspec.drafting.base import Draft, Drafter
from vidspec.engine.requests import Forward, Steps
from vidspec.engine.rows import Passed, Prefill, Rows
from vidspec.events.events import Origin, Rejected, Round

if TYPE_CHECKING:
    import torch

    from vidspec.acceptance.base import Acceptance, Verdict
    from vidspec.engine.forward import Engine
    from vidspec.engine.sampling import Sampling
    from vidspec.events.trace import Trace

__all__ = ["NOTHING", "Job", "Schedule", "Target"]

#: What plain decoding verifies.
NOTHING = Draft((), ())


class Target:
    """The target's side of one sequence: first token, verification, rollback. Its cache holds nothing approximate.

    Args:
        engine: the target model.
        prefill: the prompt it has read.
        sampling: how its own tokens are chosen.
        rng: CPU generator.
        tapped: blocks of which a drafter watches what enters them, where windows are verified.
        confident: whether anybody wants to know how probable it thought the tokens.

    Attributes:
        probabilities: its own, before temperature and top-p, of the tokens emitted last; empty if nobody wants them.
    """

    probabilities: tuple[float, ...] = ()

    def __init__(
        self,
        engine: Engine,
        prefill: Prefill,
        sampling: Sampling,
        rng: torch.Generator,
        tapped: tuple[int, ...] = (),
        *,
        confident: bool = False,
    ) -> None:
        self.engine, self.prefill, self.sampling, self.rng, self.tapped = engine, prefill, sampling, rng, tapped
        self.confident = confident
        self.span = prefill.span
        self._judged: tuple[Draft, torch.Tensor] | None = (NOTHING, prefill.logits[None]) if confident else None
        self._last = -1
        self._base = self.span.length

    def first(self) -> int:
        """The token that the prefill's last logits give."""
        self._last = self.choose(self.prefill.logits)
        self._told((), self._last)
        return self._last

    def choose(self, logits: torch.Tensor) -> int:
        """A token from logits (V,)."""
        from vidspec.engine.sampling import draw

        if self.sampling.greedy:
            return int(logits.argmax())
        return draw(self.sampling.distribution(logits[None])[0], self.rng)

    def step(self) -> Steps[int]:
        """One token of plain decoding."""
        passed = yield from self.verify(NOTHING)
        token = self.choose(passed.logits[-1])
        self.commit((), token)
        return token

    def verify(self, draft: Draft) -> Steps[Passed]:
        """One pass over the last emitted token and a window behind it: row 0, then a row for each drafted token."""
        self._base = self.span.length
        tokens = [self._last, *draft.tokens]
        parents = None if draft.is_chain else [-1, *(parent + 1 for parent in draft.parents)]
        (passed,) = yield Forward(self.engine, [Rows(self.span, tokens, parents, tapped=self.tapped)])
        if self.confident:
            self._judged = draft, passed.logits
        return passed  # type: ignore[no-any-return]

    def commit(self, path: Sequence[int], token: int) -> None:
        """Keep the drafted tokens at ``path`` of the verified window, drop the others from the cache.

        ``token`` follows them and is read by the next pass.
        """
        if tuple(path) == tuple(range(len(path))):
            self.span.rollback(self._base + 1 + len(path))
        else:
            self.span.gather(self._base + 1, path)
        self._last = token
        self._told(path, token)

    def _told(self, path: Sequence[int], token: int) -> None:
        if self._judged is None:
            return
        (draft, logits), self._judged = self._judged, None
        ids = [*(draft.tokens[node] for node in path), token]
        shares = logits[[0, *(node + 1 for node in path)]].float().softmax(-1)
        self.probabilities = tuple(shares[range(len(ids)), ids].tolist())


@dataclass
class Job:
    """Everything a schedule needs for one clip.

    ``window`` chooses the draft window while the text is written, else ``gamma`` is it. Both, and the drafter, may be
    replaced between two rounds.
    """

    target: Target
    limits: Limits
    trace: Trace
    rng: torch.Generator
    drafter: Drafter | None = None
    acceptance: Acceptance | None = None
    gamma: int = 0
    window: Window | None = None

    def first_round(self) -> tuple[Round, bool]:
        """The round of the prefill's own token, and whether the text ends there."""
        token = self.target.first()
        told = self.target.probabilities
        round_ = Round((token,), ("target",), drafted=0, accepted=0, elapsed=0.0, probabilities=told)
        return round_, self.limits.over([token])


class Schedule(Protocol):
    """Drives target and draft; yields what it asks for, and one round per verification (or per plain step)."""

    def __call__(self, job: Job) -> Steps[None]: ...


def origins(verdict: Verdict, draft: Draft, emitted: int) -> tuple[Origin, ...]:
    """Where the first ``emitted`` tokens of a window's outcome came from."""
    loose = verdict.loose
    names: list[Origin] = ["loose" if node in loose else "draft" for node in verdict.path]
    end = verdict.path[-1] if verdict.path else -1
    names.append("target" if not draft.tokens else "correction" if draft.children(end) else "bonus")
    return tuple(names[:emitted])


def rejected(verdict: Verdict, draft: Draft, emitted: int) -> tuple[Rejected, ...]:
    """What a window had in the places of the first ``emitted`` tokens of its outcome, and does not stand there."""
    path = verdict.path
    if draft.is_chain:
        at = len(path)
        return (Rejected(at, draft.tokens[at]),) if at < min(emitted, len(draft.tokens)) else ()
    before = (-1, *path)[:emitted]
    return tuple(
        Rejected(at, draft.tokens[node])
        for at, parent in enumerate(before)
        for node in draft.children(parent)
        if node not in path
    )
