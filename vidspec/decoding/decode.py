"""Decoding of one clip by its setup: in turns, or with the draft in a process of its own."""

from __future__ import annotations

from vidspec.decoding.prefill import prefill
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.workers.run import run_parallel
from vidspec.engine.requests import Steps

__all__ = ["decode"]


def decode(sequence: Sequence) -> Steps[None]:
    """Read both prompts and write the text; emits ``Prefilled``, then a round per target pass.

    The first round is the prefill's own token.
    """
    if sequence.setup.slot is not None:
        yield from run_parallel(sequence)
        return
    window = yield from prefill(sequence)
    drafter, cache = sequence.drafter, sequence.job.cache
    try:
        yield from sequence.setup.schedule(sequence)
    finally:
        if window is not None:
            window.close()
        if drafter is not None:
            sequence.draft_forwards = drafter.forwards
    if cache is not None:
        cache.add_text([sequence.target.span, *(drafter.spans if drafter is not None else ())], sequence.token_ids)
