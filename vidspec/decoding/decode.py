"""Decoding of one clip by its schedule, from its read frames to its record.

The record's counters come from rounds, its rates from counters, its times from the trace.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from copy import copy
from dataclasses import asdict
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, cast

import torch

from vidspec.decoding.captioner_models import models_record
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.part_answers import check_text
from vidspec.decoding.schedules.autoregressive import autoregressive
from vidspec.decoding.sequence import Sequence
from vidspec.embedded import ships
from vidspec.engine.requests import Steps
from vidspec.errors import GenerationError
from vidspec.escaping import without_marks
from vidspec.events.compare import count_rounds, estimate_speedup, lengths, weights_by_context
from vidspec.events.events import Finished, Prefilled, Round
from vidspec.events.record import (
    Caption,
    CountsRecord,
    EnsembleRecord,
    LooseRecord,
    LooseTokenRecord,
    ModelsRecord,
    QuestionRecord,
    Resting,
    ScheduleRecord,
    VideoRecord,
)
from vidspec.events.trace import Trace
from vidspec.models.detokenizer import CLOSING_TAG

if TYPE_CHECKING:
    from vidspec.decoding.sequence import Sequence
    from vidspec.decoding.setup import DecodingSetup
    from vidspec.video.base import Clip

#: Untimed steps, after which processor caches hold the target's weights; fewest and most timed steps.
UNTIMED, LEAST, MOST = 4, 8, 48

#: Timing ends after so many seconds, and after this share of the clip's time, but not before LEAST steps.
SECONDS, SHARE = 0.06, 0.05

#: Largest ratio between the medians of the earlier and the later half; steps slower than SPIKE medians, which plain
#: decoding did not cause, are left out.
MEDIAN_RATIO, SPIKE = 1.1, 2.0


def decode(sequence: Sequence, can_estimate: Callable[[Sequence], bool]) -> Steps[None]:
    """Decode a clip by its schedule, and emit ``Finished`` after the schedule's events.

    Args:
        sequence: the clip.
        can_estimate: True for a finished clip whose speed-up may be estimated.
    """
    setup = sequence.setup
    try:
        sequence.restore_frames()
        sequence.attempt()
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
    drafter, cache = sequence.drafting.drafter if sequence.drafting is not None else None, sequence.job.cache
    if cache is not None:
        cache.add_text([sequence.target.span, *(drafter.spans if drafter is not None else ())], sequence.token_ids)
    plain_step_s = None
    if can_estimate(sequence):
        sequence.deadline = None  # its text is complete
        plain_step_s = yield from time_plain_step(sequence)
    if drafter is not None:
        drafter.finish(sequence.token_ids)
    sequence.emit(Finished(report(sequence, models_record(setup), plain_step_s)))
    sequence.drafting = None  # frees their entries, even if an error of another clip refers to this one
    del sequence.target


def time_plain_step(sequence: Sequence) -> Steps[float | None]:
    """Return the mean seconds per token of plain decoding, host work included.

    :func:`autoregressive` continues after the text on the clip's cache, or over its last entries if there is no room
    after it; the clip's tokens, events and trace do not change.

    Args:
        sequence: its text is complete, and it shares neither the models nor its entries with another.

    Returns:
        None if the earlier steps take another time than the later ones, as on a busy machine, or if recurrent states
        leave no room for enough steps.
    """
    span, spent = sequence.target.span, sequence.trace.elapsed()
    if span.states is None:
        read = sequence.prefilled if sequence.job.cache is not None else None  # kept for a further question
        span.rollback(max(read.prompt_tokens if read else 0, min(span.length, span.room - UNTIMED - MOST)))
    first = span.length
    steps = min(UNTIMED + MOST, span.room - first)
    if steps < UNTIMED + LEAST:
        return None
    plain = copy(sequence)
    plain.events, plain.trace, plain.target = deque(), Trace(sequence.trace.synchronise), copy(sequence.target)
    plain.target.tapped = ()
    plain.attempt()

    def enough(token_ids: Items[int]) -> bool:
        return len(token_ids) > UNTIMED + LEAST and plain.trace.elapsed() > max(SECONDS, SHARE * spent)

    plain.limits = StoppingRules(steps + 1, stopped=enough)
    plain.emit_first()
    yield from autoregressive(plain)
    if span.states is None:
        span.rollback(first)
    times = [after.elapsed - before.elapsed for before, after in pairwise(plain.rounds[UNTIMED:])]
    early, late = median(times[: len(times) // 2]), median(times[len(times) // 2 :])
    if max(early, late) > MEDIAN_RATIO * min(early, late):
        return None
    return fmean(seconds for seconds in times if seconds < SPIKE * max(early, late))


#: Ends of texts, for messages.
ENDS = {"eos": "an end token", "length": "the token limit", "loop": "a repetition", "stop": "a stop string"}


def report(sequence: Sequence, models: ModelsRecord, plain_step_s: float | None = None) -> Caption:
    """Return the record of a captioned clip.

    Args:
        sequence: a clip that has emitted all its rounds.
        models: the record's entry on the models.
        plain_step_s: seconds of a plain decoding step after its text; None if not timed.
    """
    setup, read, rounds = sequence.setup, sequence.prefilled, sequence.rounds
    if read is None or sequence.text is None:
        raise AssertionError("a text begins with Prefilled")
    counters, token_ids = count_rounds(rounds, sequence.draft_forwards), sequence.token_ids
    decode, ended = rounds[-1].elapsed, sequence.limits.end_reason(token_ids)
    caption, reasoning = _finished_text(sequence, ended)
    return Caption(
        path=sequence.job.path,
        caption=caption,
        token_ids=token_ids,
        ended=ended,
        data=parse_json(sequence.job.path, caption, ended) if setup.profile.generate.grammar_schema else None,
        lossless=setup.profile.lossless,
        demo=ships(setup.target.model.source),
        profile=setup.profile.name,
        seed=sequence.seed if sequence.drawn_seed is None else sequence.drawn_seed + sequence.job.attempt,
        models=models,
        video=_video(sequence.job.frames),
        counters=cast(
            "CountsRecord",
            {
                **asdict(counters),
                "accepted_lengths": list(counters.accepted_lengths),
                "prompt_tokens": read.prompt_tokens,
                "visual_tokens": read.visual_tokens,
                "visual_tokens_kept": len(read.kept),
                "audio_tokens": read.audio_tokens,
                "state_bytes": sum(
                    engine.model.decoder.state_bytes for engine in (setup.target, setup.draft) if engine
                ),
            },
        ),
        lengths=lengths(counters),
        timings={
            **sequence.trace.totals(),
            "time_to_first_token": read.elapsed,
            **_draft_reading(sequence),
            "decode": decode,
            "end_to_end": sequence.text_start + decode,
        },
        speed={
            "tokens_per_s": (len(token_ids) - 1) / decode if decode > 0 else None,
            "estimate": estimate_speedup(len(token_ids), decode, plain_step_s),
        },
        schedule=_schedule(sequence),
        kept_per_frame=list(read.kept_per_frame),
        ensemble=_ensemble(setup, read, rounds),
        loose=None if setup.acceptance is None or setup.acceptance.lossless else _loose(setup, rounds),
        lossy=sequence.target.lossy,
        question=_question(sequence),
        reasoning=reasoning,
        trace=sequence.trace,
    )


def _video(clip: Clip) -> VideoRecord:
    """Return the record's entry on the clip."""
    facts = {key: value for key, value in asdict(clip.facts).items() if value is not None}
    timestamps = [round(float(t), 6) for t in clip.timestamps]
    facts |= {"damage": list(clip.facts.damage), "frames": len(clip.frames), "timestamps": timestamps}
    return cast("VideoRecord", facts)


def _finished_text(sequence: Sequence, ended: str) -> tuple[str, str | None]:
    """Return the caption, and the reasoning before it.

    Raises:
        GenerationError: the text ended before the reasoning did.
    """
    assert sequence.text is not None
    caption, reasoning = sequence.text.finish()
    if caption is None:
        raise GenerationError(
            f"{sequence.job.path}: the text ended by {ENDS[ended]} before {CLOSING_TAG}, so it is only reasoning",
            hint="raise --max-new-tokens",
            kind="reasoning",
        )
    return caption, reasoning


def _draft_reading(sequence: Sequence) -> dict[str, float]:
    """Return the time after the first token in which the draft read, if it works in this process."""
    if sequence.drafting is None or sequence.released is None:
        return {}
    return {"draft_reading": sequence.released.elapsed - sequence.text_start}


def _question(sequence: Sequence) -> QuestionRecord | None:
    request, setup, cache = sequence.job, sequence.setup, sequence.job.cache
    if request.question is None or cache is None:
        return None
    return {
        "kind": request.question.kind,
        "index": request.question.index,
        "prompt": without_marks(request.prompt or ""),
        "reused": cache.reused.get(setup.target.model, 0),
        "reused_by_draft": cache.reused.get(setup.draft.model, 0) if setup.draft is not None else None,
        "saved_s": max(0.0, (cache.reading_s or 0.0) - sequence.reading_s),
    }


def _schedule(sequence: Sequence) -> ScheduleRecord:
    gammas = [step.gamma for step in sequence.rounds if step.gamma]
    return {
        "kind": sequence.kind,
        "gamma": gammas[-1] if gammas else None,
        "wasted": sum(step.wasted for step in sequence.rounds) if sequence.kind == "parallel" else None,
        "resting": _resting(sequence),
    }


def _resting(sequence: Sequence) -> Resting | None:
    passes, drafting = sequence.rounds[1:], sequence.drafting
    if drafting is None or not passes:
        return None
    return {
        "share": round(sum(not step.drafted for step in passes) / len(passes), 6),
        "by_cost": round(drafting.drafter.declined / len(passes), 6),
    }


def _loose(setup: DecodingSetup, rounds: Iterable[Round]) -> LooseRecord:
    tokenizer = setup.target.model.tokenizer
    tokens: list[LooseTokenRecord] = []
    emitted = 0
    for step in rounds:
        for loose in step.loosened:
            token = step.token_ids[loose.at]
            tokens.append(
                {
                    "at": emitted + loose.at,
                    "wanted": loose.wanted,
                    "by": loose.by,
                    "relevance": loose.relevance,
                    "entropy": loose.entropy,
                    "token": token,
                    "text": tokenizer.decode([token]),
                    "wanted_text": tokenizer.decode([loose.wanted]),
                }
            )
        emitted += len(step.token_ids)
    return {"share": len(tokens) / emitted, "tokens": tokens}


def _ensemble(setup: DecodingSetup, read: Prefilled, rounds: Iterable[Round]) -> EnsembleRecord | None:
    if not read.contexts:
        return None
    return {
        "weights": {context: list(row) for context, row in weights_by_context(read.contexts, rounds).items()},
        "caption": read.caption,
        "captioner": setup.describe.name if setup.describe else None,
    }


def parse_json(path: str, caption: str, ended: str) -> Any:
    """Return the value of a text that follows a JSON Schema.

    Raises:
        GenerationError: it was cut before its end, or has no value.
    """
    if ended != "eos":
        raise GenerationError(
            f"{path}: the JSON answer was cut by {ENDS[ended]}: {caption[-40:]!r}",
            hint="raise --max-new-tokens, or take a smaller schema",
            kind="json",
        )
    try:
        value = json.loads(caption)
        json.dumps(value, allow_nan=False)  # 1e999 is read as infinity
    except (ValueError, RecursionError) as error:
        raise GenerationError(f"{path}: the JSON answer cannot be read: {error}", kind="json") from None
    return value
