"""One clip through target and draft, from its frames to its last token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from vidspec.acceptance.base import for_clip
from vidspec.decoding.base import Job, Target
from vidspec.decoding.setup import Setup, prefilled
from vidspec.drafting.base import Drafter
from vidspec.drafting.opening import Opening
from vidspec.engine.asks import Asks, asked, timed
from vidspec.engine.sampling import Sampling
from vidspec.lossy.engine import kept_per_layer
from vidspec.models.prompt import Question
from vidspec.pruning.base import taps_for
from vidspec.telling.trace import Trace

__all__ = ["Choice", "InTurns", "Run"]

GREEDY = Sampling(0.0, 1.0)


@dataclass(frozen=True)
class Choice:
    """Which schedule was chosen, and the measurement that decided."""

    kind: str
    why: str


class Run(Protocol):
    """One clip; to be used once."""

    @property
    def setup(self) -> Setup:
        """Models and parts."""
        ...

    @property
    def choice(self) -> Choice | None:
        """How its schedule was chosen; None where the profile names it."""
        ...

    @property
    def draft_forwards(self) -> int:
        """Passes of the draft so far, prefill excluded."""
        ...

    def events(self) -> Asks[None]:
        """Yields what is asked for, and ``Prefilled``, then a round per target pass; the first round is the prefill's
        own token."""
        ...


class InTurns:
    """In turns: the target reads, the draft reads, then the schedule alternates between them.

    Args:
        setup: models and parts.
        path: for messages.
        question: frames and prompt.
        trace: where everything is timed.
        keep: whether ``opening`` stays, which holds what the target's prefill showed.

    Attributes:
        job: what the schedule works with, from ``Prefilled`` on; between two rounds it may be changed.
        opening: what drafters can be made from, if it is kept.
        choice: how the schedule was chosen; None where the profile names it.
    """

    choice: Choice | None = None

    def __init__(self, setup: Setup, path: str, question: Question, trace: Trace, *, keep: bool = False) -> None:
        self.setup, self.path, self.question, self.trace = setup, path, question, trace
        self.job: Job | None = None
        self.opening: Opening | None = None
        self._keep = keep
        self._replaced = 0

    @property
    def draft_forwards(self) -> int:
        return self._replaced + (self.job.drafter.forwards if self.job and self.job.drafter else 0)

    def switch(self, drafter: Drafter) -> None:
        """Go on with another drafter, which has read as much of the text as this one."""
        if self.job is None:
            raise ValueError("nothing has been read yet")
        self._replaced = self.draft_forwards
        self.job.drafter = drafter
        self._replaced -= drafter.forwards

    def events(self) -> Asks[None]:
        setup, trace = self.setup, self.trace
        generate = setup.profile.generate
        prefix = yield from setup.read(self.path, self.question, trace)
        taps = taps_for(setup.needs, prefix)
        description = None
        if setup.describe is not None:
            # Needs nothing of the target: a second worker could do it beside the prefill (TABED 6.2).
            description, _ = yield from timed(trace, "caption", "draft", setup.describe, self.question.clip)
        read, _ = yield from timed(trace, "target_prefill", "target", setup.prefill, prefix, taps)
        rng = torch.Generator().manual_seed(generate.seed)
        kept = setup.kept(prefix, taps, trace)
        gamma = setup.profile.draft.gamma
        drafter: Drafter | None = None
        if setup.drafter is not None:
            opening = Opening(
                profile=setup.profile,
                question=self.question,
                # A window that depends on times must not decide which random numbers a token gets.
                sampling=GREEDY if gamma == "auto" else setup.sampling,
                rng=rng,
                room=setup.room,
                trace=trace,
                tokens=len(prefix.visual),
                kept=kept,
                draft=setup.draft,
                target=setup.target,
                prefix=prefix,
                read_by_target=read,
                taps=taps,
                caption=description,
            )
            drafter = yield from asked(setup.drafter.open, opening)
            self.opening = opening if self._keep else None
            del opening
        del taps  # what was observed can be as large as the prompt
        self.job = Job(
            target=Target(setup.target, read, setup.sampling, rng),
            limits=setup.limits,
            trace=trace,
            rng=rng,
            drafter=drafter,
            acceptance=for_clip(setup.acceptance, read.visual_states) if setup.acceptance else None,
            gamma=0 if gamma == "auto" else gamma,
            window=setup.pace.window() if setup.pace else None,
        )
        yield prefilled(setup.profile, prefix, kept, trace.now(), description, kept_per_layer(read.span))
        try:
            yield from setup.schedule(self.job)
        finally:
            if self.job.window is not None:
                self.job.window.close()
