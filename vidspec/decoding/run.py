"""One clip through target and draft, from its frames to its last token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

from vidspec.acceptance.base import for_clip
from vidspec.decoding.base import Job, Limits, Target
from vidspec.decoding.events import Prefilled, Round
from vidspec.decoding.setup import Setup, prefilled
from vidspec.decoding.trace import Trace
from vidspec.drafting.base import Drafter
from vidspec.drafting.opening import Opening
from vidspec.models.prompt import Question
from vidspec.pruning.base import taps_for

__all__ = ["InTurns", "Run"]


class Run(Protocol):
    """One clip; to be used once."""

    @property
    def draft_forwards(self) -> int:
        """Passes of the draft so far, prefill excluded."""
        ...

    def events(self) -> Iterator[Prefilled | Round]:
        """``Prefilled``, then a round per target pass; the first round is the prefill's own token."""
        ...


class InTurns:
    """Everything in one thread: the target reads, the draft reads, then the schedule alternates between them.

    Args:
        setup: models and parts.
        path: for messages.
        question: frames and prompt.
        trace: where everything is timed.
    """

    def __init__(self, setup: Setup, path: str, question: Question, trace: Trace) -> None:
        self.setup, self.path, self.question, self.trace = setup, path, question, trace
        self._drafter: Drafter | None = None

    @property
    def draft_forwards(self) -> int:
        return self._drafter.forwards if self._drafter else 0

    def events(self) -> Iterator[Prefilled | Round]:
        setup, trace = self.setup, self.trace
        generate = setup.profile.generate
        prefix = setup.read(self.path, self.question, trace)
        taps = taps_for(setup.needs, prefix)
        description = None
        if setup.describe is not None:
            # Needs nothing of the target: a second worker could do it beside the prefill (TABED 6.2).
            with trace.span("caption", "draft"):
                description = setup.describe(self.question.clip)
        with trace.span("target_prefill"):
            state = setup.prefill(prefix, taps)
        rng = torch.Generator().manual_seed(generate.seed)
        kept = setup.kept(prefix, taps, trace)
        if setup.drafter is not None:
            self._drafter = setup.drafter.open(
                Opening(
                    profile=setup.profile,
                    question=self.question,
                    sampling=setup.sampling,
                    rng=rng,
                    room=setup.room,
                    trace=trace,
                    tokens=len(prefix.visual),
                    kept=kept,
                    draft=setup.draft,
                    target=setup.target,
                    prefix=prefix,
                    state=state,
                    taps=taps,
                    caption=description,
                )
            )
        del taps  # what was observed can be as large as the prompt
        yield prefilled(setup.profile, prefix, kept, trace.now(), description)
        gamma = setup.profile.draft.gamma
        yield from setup.schedule(
            Job(
                target=Target(setup.target, state, setup.sampling, rng),
                limits=Limits(generate.max_new_tokens, setup.target.model.eos),
                trace=trace,
                rng=rng,
                drafter=self._drafter,
                acceptance=for_clip(setup.acceptance, state.visual_states) if setup.acceptance else None,
                gamma=0 if gamma == "auto" else gamma,
            )
        )
