"""The record of a clip from its events: counters from rounds, rates from counters, times from the trace."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from vidspec.embedded import ships
from vidspec.errors import GenerationError
from vidspec.escaping import without_marks
from vidspec.events.compare import estimate_speedup
from vidspec.events.counters import count_rounds, lengths, weights_by_context
from vidspec.events.events import Prefilled, Round
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
from vidspec.models.detokenizer import CLOSING_TAG

if TYPE_CHECKING:
    from vidspec.decoding.sequence import Sequence
    from vidspec.decoding.setup import DecodingSetup
    from vidspec.video.base import Clip

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
