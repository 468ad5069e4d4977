"""Plain decoding of a clip with a pruned target, one token at a time: its passes are shared with no other clip."""

from __future__ import annotations

from functools import partial

from vidspec.baselines.base import PruningRule
from vidspec.baselines.engine import PrunedTargetEngine
from vidspec.baselines.span import PrunedSpan
from vidspec.decoding.prefill import TargetPrompt, open_target
from vidspec.decoding.schedules.autoregressive import plain_round
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.target import Target
from vidspec.drafting.base import NO_DRAFT
from vidspec.engine.requests import Encode, Steps
from vidspec.engine.rows import PassResult, PrefillResult
from vidspec.events.events import InputsReleased
from vidspec.events.record import LossyRecord

__all__ = ["decode"]


class PrunedTarget(Target):
    """The side of a pruned target: its passes are its own."""

    pruned: PrunedTargetEngine

    def step(self) -> Steps[PassResult]:
        (passed,) = yield Encode(partial(self.pruned.run, [self.rows(NO_DRAFT)]))
        self.commit((), passed.chosen[0], passed)
        return passed  # type: ignore[no-any-return]


def decode(method: PruningRule, sequence: Sequence) -> Steps[None]:
    """Read the prompt, drop tokens by ``method``, and write the text."""
    setup, trace = sequence.setup, sequence.trace
    engine = PrunedTargetEngine(setup.target.model, method)
    prompt = yield from TargetPrompt.embed(sequence)
    prompt.choose(sequence, "target")
    with trace.span("target_prefill"):
        read = yield Encode(partial(engine.prefill, prompt.prefix, setup.room))
    target = sequence.target = open_target(sequence, prompt, read, PrunedTarget)
    target.pruned = engine
    sequence.lossy = _record(setup.profile.lossy.method, read, len(prompt.prefix.visual))
    sequence.emit(prompt.prefilled(setup.profile, trace.now()))
    over = sequence.emit_first()
    prompt.release()
    sequence.emit(InputsReleased(trace.now()))
    while not over:
        over = yield from plain_round(sequence)


def _record(method: str, read: PrefillResult, visual: int) -> LossyRecord:
    """Return the visual tokens that each block reads while decoding."""
    assert isinstance(read.span, PrunedSpan)
    kept = list(read.span.kept)
    every = len(kept) * visual
    return {"method": method, "kept": kept, "retention": round(sum(kept) / every, 6) if every else None}
