"""The target's side of one clip in the parallel schedule: prefill and verification."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vidspec.acceptance.base import Verdict, for_clip
from vidspec.decoding.protocol import PromptRead, TargetMessage, Verify
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.setup import prefilled
from vidspec.decoding.target import Target, verify
from vidspec.drafting.base import Draft
from vidspec.engine.requests import Steps
from vidspec.events.events import Prefilled
from vidspec.models.base import EmbeddedPrompt
from vidspec.pruning.base import attention_ranks, make_taps

__all__ = ["Publish", "TargetSide"]

#: Receives the indices of the visual tokens that the draft may see, as soon as they are known.
Publish = Callable[[tuple[int, ...]], None]


class TargetSide:
    """Answers the messages to the target.

    Args:
        sequence: the clip.

    Attributes:
        prefix: the target's prompt, without its embeddings once it has been read; None before it is known.
    """

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.prefix: EmbeddedPrompt | None = None
        self._kept: torch.Tensor | None = None
        self._signals: tuple[tuple[str, bytes], ...] = ()
        self._emitted_count = 0

    def answer(self, order: TargetMessage, publish: Publish) -> Steps[PromptRead | Verdict]:
        """Answer one message; ``publish`` may be called in the middle of a pass."""
        if isinstance(order, Verify):
            return (yield from self._verify(order))
        begun = self.sequence.trace.elapsed()
        yield from self.read(publish)
        target = self.sequence.target
        token = target.first()
        self._emitted_count = 1
        return PromptRead("target", self.sequence.trace.elapsed() - begun, token, target.probabilities)

    def prefilled(self, elapsed: float) -> Prefilled:
        """Return the event of the prefilled prompts."""
        if self.prefix is None:
            raise RuntimeError("a round came before the prompt was read")
        profile = self.sequence.setup.profile
        everything = torch.arange(len(self.prefix.visual) if profile.shows_the_video else 0)
        kept = everything if self._kept is None else self._kept
        return prefilled(profile, self.prefix, kept, elapsed, signals=self._signals)

    def read(self, publish: Publish) -> Steps[None]:
        """Prefill the target; publish the draft's visual tokens once their signals exist, or at the end."""
        sequence, setup, trace = self.sequence, self.sequence.setup, self.sequence.trace
        prefix = self.prefix = yield from setup.read(sequence.job, trace)
        taps = make_taps(setup.needs, prefix)

        def choose() -> None:
            self._kept = setup.kept(prefix, taps, trace, "target")
            publish(tuple(self._kept.tolist()))

        if setup.pruner is not None and not setup.late:
            if taps is None:
                choose()
            else:
                taps.ready = choose
        with trace.span("target_prefill"):
            read = yield from setup.prefill(prefix, taps)
        self._signals, self.prefix = attention_ranks(taps), prefix.outline()
        if setup.late:
            choose()
        if setup.pruner is not None and self._kept is None:
            raise RuntimeError("the prompt was read and the draft was never given its visual tokens")
        assert setup.acceptance is not None
        sequence.acceptance = for_clip(setup.acceptance, read.visual_states)
        probs, history = sequence.job.return_probs, setup.history(prefix)
        sequence.target = Target(setup.target, read, setup.sampling, sequence.rng, return_probs=probs, history=history)

    def _verify(self, order: Verify) -> Steps[Verdict]:
        if order.prefix != self._emitted_count:
            raise RuntimeError(f"{order} does not follow {self._emitted_count} emitted tokens")
        verdict, _ = yield from verify(self.sequence, Draft.chain(order.window), order.round)
        self.sequence.trace.lap("rollback")
        self._emitted_count += verdict.accepted + 1
        return verdict
