"""Plain decoding, one token per pass of the target: the baseline, on the engine that all methods share."""

from __future__ import annotations

from vidspec.decoding.sequence import Sequence
from vidspec.engine.requests import Steps
from vidspec.events.events import Round
from vidspec.registry import schedules


@schedules.register("autoregressive", drafts=False)
def autoregressive(sequence: Sequence) -> Steps[None]:
    """Emits one round per token."""
    target, trace = sequence.target, sequence.trace
    begun = trace.now()
    over = sequence.emit_first()
    while not over:
        trace.begin()
        token = yield from target.step()
        verify_s, elapsed = trace.lap("verify"), trace.elapsed() - begun
        texts, _ = sequence.texts([token])
        sequence.emit(
            Round((token,), ("target",), 0, 0, elapsed, 0.0, verify_s, texts, probabilities=target.probabilities)
        )
        over = sequence.limits.over(sequence.token_ids)
