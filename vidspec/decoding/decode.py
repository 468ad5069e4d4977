"""Decoding of one clip, from its read frames to its record; again with a new process if the draft's was lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from vidspec.decoding.captioner_models import models_record
from vidspec.decoding.plain_step import time_plain_step
from vidspec.decoding.prefill import prefill
from vidspec.decoding.report import report
from vidspec.decoding.schedules.parallel import WorkerLost
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.setup import DecodingSetup
from vidspec.decoding.workers.run import run_parallel
from vidspec.engine.requests import Steps
from vidspec.errors import GenerationError
from vidspec.events.events import Finished, Restarted
from vidspec.models.request import CaptionRequest

__all__ = ["decode"]


def decode(
    sequence: Sequence,
    setup: DecodingSetup,
    with_defaults: Callable[[CaptionRequest], CaptionRequest],
    can_estimate: Callable[[Sequence], bool],
) -> Steps[None]:
    """Read both prompts and write the text.

    Emits ``Prefilled``, a round per target pass, of which the first is the prefill's own token, and ``Finished``;
    ``InputsReleased`` after the first round.

    Args:
        sequence: the clip.
        setup: models and parts.
        with_defaults: completes the clip's request.
        can_estimate: True for a finished clip whose speed-up may be estimated.
    """
    sequence.job = with_defaults(sequence.job)
    parallel = setup.slot is not None
    for attempt in (1, 2):
        try:
            if sequence.job.reread is not None and not sequence.job.frames.frames.size:
                sequence.job = replace(sequence.job, clip=sequence.job.reread())
            sequence.attempt(setup)
            if parallel:
                yield from run_parallel(sequence)
            elif setup.lossy is not None:
                yield from setup.lossy.decode(sequence)
            elif not (yield from prefill(sequence)):
                yield from setup.schedule(sequence)
            break
        except WorkerLost as error:
            if attempt == 2:
                raise
            why = error.message  # not the error itself, whose traceback holds the first attempt's cache
        except torch.OutOfMemoryError as error:
            count = len(sequence.job.frames.frames)
            raise GenerationError(
                f"{sequence.job.path}: {count} frames do not fit into the device's memory",
                hint="take fewer --frames, or a smaller dtype",
                kind="memory",
            ) from error
        finally:
            sequence.end_attempt()
        sequence.emit(Restarted(why))
    drafter, cache = sequence.drafter, sequence.job.cache
    if cache is not None and not parallel:
        cache.add_text([sequence.target.span, *(drafter.spans if drafter is not None else ())], sequence.token_ids)
    if can_estimate(sequence):
        sequence.deadline = None  # its text is complete
        sequence.plain_step_s = yield from time_plain_step(sequence)
    if drafter is not None:
        drafter.finish(sequence.token_ids)
    sequence.emit(Finished(report(sequence, models_record(setup))))
    sequence.drafter = None  # frees their entries, even if an error of another clip refers to this one
    if not parallel:
        del sequence.target
