"""Decoding of one clip by its schedule, from its read frames to its record."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vidspec.decoding.captioner_models import models_record
from vidspec.decoding.part_answers import check_text
from vidspec.decoding.plain_step import time_plain_step
from vidspec.decoding.report import report
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.setup import DecodingSetup
from vidspec.engine.requests import Steps
from vidspec.errors import GenerationError
from vidspec.events.events import Finished
from vidspec.models.request import CaptionRequest

__all__ = ["decode"]


def decode(
    sequence: Sequence,
    setup: DecodingSetup,
    with_defaults: Callable[[CaptionRequest], CaptionRequest],
    can_estimate: Callable[[Sequence], bool],
) -> Steps[None]:
    """Decode a clip by its schedule, and emit ``Finished`` after the schedule's events.

    Args:
        sequence: the clip.
        setup: models and parts.
        with_defaults: completes the clip's request.
        can_estimate: True for a finished clip whose speed-up may be estimated.
    """
    sequence.job = with_defaults(sequence.job)
    try:
        sequence.restore_frames()
        sequence.attempt(setup)
        yield from setup.schedule(sequence)
        check_text(sequence)
    except torch.OutOfMemoryError as error:
        count = len(sequence.job.frames.frames)
        raise GenerationError(
            f"{sequence.job.path}: {count} frames do not fit into the device's memory",
            hint="take fewer --frames, or a smaller dtype",
            kind="memory",
        ) from error
    finally:
        sequence.end_attempt()
    drafter, cache = sequence.drafter, sequence.job.cache
    if cache is not None:
        cache.add_text([sequence.target.span, *(drafter.spans if drafter is not None else ())], sequence.token_ids)
    if can_estimate(sequence):
        sequence.deadline = None  # its text is complete
        sequence.plain_step_s = yield from time_plain_step(sequence)
    if drafter is not None:
        drafter.finish(sequence.token_ids)
    sequence.emit(Finished(report(sequence, models_record(setup))))
    sequence.drafter = None  # frees their entries, even if an error of another clip refers to this one
    del sequence.target
