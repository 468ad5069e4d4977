"""Decoding of one clip by its setup: in turns, or with the draft in a process of its own."""

from __future__ import annotations

from vidspec.decoding.prefill import run_in_turns
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.workers.run import run_parallel
from vidspec.engine.requests import Steps

__all__ = ["decode"]


def decode(sequence: Sequence) -> Steps[None]:
    """Read both prompts and write the text; emits ``Prefilled``, then a round per target pass.

    The first round is the prefill's own token.
    """
    return run_in_turns(sequence) if sequence.setup.slot is None else run_parallel(sequence)
