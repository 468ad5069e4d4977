"""The target's side of one clip in the parallel schedule: prefill and verification."""

from __future__ import annotations

from vidspec.acceptance.base import Verdict
from vidspec.decoding.prefill import Publish, TargetPrompt, prefill_target
from vidspec.decoding.protocol import PromptRead, TargetMessage, Verify
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.target import verify
from vidspec.drafting.base import Draft
from vidspec.engine.requests import Steps

__all__ = ["TargetSide"]


class TargetSide:
    """Answers the messages to the target.

    Args:
        sequence: the clip.

    Attributes:
        prompt: the target's prompt; None before the clip is encoded.
    """

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.prompt: TargetPrompt | None = None
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

    def read(self, publish: Publish) -> Steps[None]:
        """Prefill the target; publish the draft's visual tokens once their signals exist, or at the end."""
        self.prompt = yield from TargetPrompt.embed(self.sequence)
        yield from prefill_target(self.sequence, self.prompt, publish)
        self.prompt.release()

    def _verify(self, order: Verify) -> Steps[Verdict]:
        if order.prefix != self._emitted_count:
            raise RuntimeError(f"{order} does not follow {self._emitted_count} emitted tokens")
        verdict, _ = yield from verify(self.sequence, Draft.chain(order.window), order.round)
        self.sequence.trace.lap("rollback")
        self._emitted_count += verdict.accepted + 1
        return verdict
