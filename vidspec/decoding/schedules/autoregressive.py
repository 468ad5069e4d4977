"""Plain decoding, one token per target pass: the baseline, on the engine that all methods share."""

from __future__ import annotations

from vidspec.decoding.sequence import Sequence
from vidspec.engine.requests import Steps
from vidspec.events.events import Round
from vidspec.schedule import Schedule, schedules


def autoregressive(sequence: Sequence) -> Steps[None]:
    """Continue a text after its first token, a round per token."""
    while not (yield from plain_round(sequence)):
        pass


def plain_round(sequence: Sequence) -> Steps[bool]:
    """Emit the round of one target token, which the drafter reads; return True if the text ends with it."""
    target, trace = sequence.target, sequence.trace
    trace.lap()
    passed = yield from target.step()
    token = passed.chosen[0]
    if sequence.drafting is not None:
        sequence.drafting.drafter.read((token,), passed)
    verify_s, elapsed = trace.lap("verify"), trace.lapped - sequence.text_start
    probabilities, over = target.probabilities, sequence.limits.is_finished([*sequence.token_ids, token])

    def make() -> Round:
        texts, _ = sequence.add_text((token,))
        return Round((token,), ("target",), 0, 0, elapsed, 0.0, verify_s, texts, probabilities=probabilities)

    sequence.emit_round((token,), make, last=over)
    return over


@schedules.register("autoregressive")
class Autoregressive(Schedule):
    drafts = False

    @staticmethod
    def run(sequence: Sequence) -> Steps[None]:
        from vidspec.decoding.prefill import prefill  # imports torch, which a profile is checked without

        if not (yield from prefill(sequence)):
            yield from autoregressive(sequence)
