"""The target's side of one clip: its prompt is read, and windows are verified, with passes that it asks for."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vidspec.acceptance.base import Acceptance, for_clip
from vidspec.decoding.base import Target
from vidspec.decoding.protocol import Ready, TargetMessage, Verdict, Verify
from vidspec.drafting.base import Draft
from vidspec.engine.requests import Steps, timed
from vidspec.events.trace import Trace

__all__ = ["Publish", "TargetSide"]

#: Takes the indices of the visual tokens that the draft may see, as early as they are known.
Publish = Callable[[tuple[int, ...]], None]


class TargetSide:
    """Answers the messages to the target.

    Args:
        reading: reads the prompt.
        acceptance: judges a window.
        rng: CPU generator.
        trace: where its work is timed.
    """

    def __init__(
        self, reading: Callable[[Publish], Steps[Target]], acceptance: Acceptance, rng: torch.Generator, trace: Trace
    ) -> None:
        self.reading, self.acceptance, self.rng, self.trace = reading, acceptance, rng, trace
        self._target: Target | None = None
        self._emitted = 0

    def answer(self, order: TargetMessage, publish: Publish) -> Steps[Ready | Verdict]:
        """One message's; ``publish`` may be called in the middle of a pass."""
        if isinstance(order, Verify):
            return (yield from self._verify(order))
        begun = self.trace.elapsed()
        self._target = yield from self.reading(publish)
        self.acceptance = for_clip(self.acceptance, self._target.prefill.visual_states)
        token = self._target.first()
        self._emitted = 1
        return Ready("target", self.trace.elapsed() - begun, token, self._target.probabilities)

    def _verify(self, order: Verify) -> Steps[Verdict]:
        target, trace = self._target, self.trace
        if target is None or order.prefix != self._emitted:
            raise RuntimeError(f"{order} does not follow {self._emitted} emitted tokens")
        rows = len(order.window) + 1
        window = Draft(order.window, tuple(range(-1, len(order.window) - 1)))
        about = (("round", order.round), ("rows", rows))
        passed, seconds = yield from timed(trace, "verify", "target", target.verify, window, about=about)
        judged_at = trace.now()
        with trace.span("accept"):
            verdict = self.acceptance(window, passed.logits, passed.hidden, self.rng)
        seconds += trace.now() - judged_at
        with trace.span("rollback"):
            target.commit(verdict.path, verdict.token)
        self._emitted += verdict.accepted + 1
        return Verdict(
            order.round,
            verdict.accepted,
            verdict.token,
            rows,
            seconds,
            verdict.loosened,
            target.probabilities,
        )
