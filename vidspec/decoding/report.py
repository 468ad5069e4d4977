"""The record of a clip from the events it gave: counters from rounds, rates from counters, times from the trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, cast

from vidspec.decoding.limits import ended
from vidspec.embedded import ships
from vidspec.events.counters import count, estimate_speedup, lengths, weights_by_context
from vidspec.events.events import Prefilled, Round
from vidspec.events.record import (
    Caption,
    Counts,
    Ensemble,
    Loose,
    LooseToken,
    Lossy,
    Models,
    Question,
    Schedule,
    Video,
)

if TYPE_CHECKING:
    from vidspec.decoding.run import Run
    from vidspec.decoding.setup import Setup

__all__ = ["report"]


def report(run: Run, models: Models) -> Caption:
    """The record of a captioned clip.

    Args:
        run: which has said everything.
        models: what the record says of the models.
    """
    setup, read, rounds, clip = run.setup, run.read, run.rounds, run.request.shown
    if read is None:
        raise AssertionError("a run begins with Prefilled")
    counters = count(rounds, run.draft_forwards)
    token_ids = [token for step in rounds for token in step.token_ids]
    decode = rounds[-1].elapsed
    return Caption(
        path=run.request.path,
        caption=run.text.finish(),
        token_ids=token_ids,
        ended=ended(token_ids, setup.target.model.eos),
        lossless=setup.lossless,
        demo=ships(setup.target.model.source),
        profile=setup.profile.name,
        seed=run.seed,
        models=models,
        video=cast(
            "Video",
            {
                **asdict(clip.facts),
                "damage": list(clip.facts.damage),
                "frames": len(clip.frames),
                "timestamps": [round(float(t), 6) for t in clip.timestamps],
            },
        ),
        counters=cast(
            "Counts",
            {
                **asdict(counters),
                "accepted_lengths": list(counters.accepted_lengths),
                "visual_tokens": read.visual_tokens,
                "visual_tokens_kept": len(read.kept),
                "audio_tokens": read.audio_tokens,
                "state_bytes": sum(one.model.decoder.state_bytes for one in (setup.target, setup.draft) if one),
            },
        ),
        lengths=lengths(counters),
        timings={
            **run.trace.totals(),
            "time_to_first_token": read.elapsed,
            "decode": decode,
            "end_to_end": run.finished,
        },
        speed={
            "tokens_per_s": (len(token_ids) - 1) / decode if decode > 0 else None,
            "estimate": estimate_speedup(rounds),
        },
        schedule=_schedule(run),
        kept_per_frame=list(read.kept_per_frame),
        ensemble=_ensemble(setup, read, rounds),
        loose=None if setup.acceptance is None or setup.acceptance.lossless else _loose(setup, rounds),
        lossy=_lossy(setup, read),
        question=_question(run),
        trace=run.trace,
    )


def _question(run: Run) -> Question | None:
    request, setup, held = run.request, run.setup, run.request.held
    if request.question is None or held is None:
        return None
    return {
        "kind": request.question.kind,
        "index": request.question.index,
        "prompt": request.prompt or "",
        "reused": held.reused.get(setup.target.model, 0),
        "reused_by_draft": held.reused.get(setup.draft.model, 0) if setup.draft is not None else None,
        "saved_s": max(0.0, (held.reading_s or 0.0) - run.reading_s),
    }


def _schedule(run: Run) -> Schedule:
    gammas = [step.gamma for step in run.rounds if step.gamma]
    return {
        "kind": run.kind,
        "why": run.choice.why if run.choice else None,
        "gamma": gammas[-1] if gammas else None,
        "wasted": sum(step.wasted for step in run.rounds) if run.kind == "parallel" else None,
    }


def _loose(setup: Setup, rounds: Sequence[Round]) -> Loose:
    tokenizer = setup.target.model.tokenizer
    tokens: list[LooseToken] = []
    emitted = 0
    for step in rounds:
        for one in step.loosened:
            token = step.token_ids[one.at]
            tokens.append(
                {
                    "at": emitted + one.at,
                    "wanted": one.wanted,
                    "by": one.by,
                    "relevance": one.relevance,
                    "entropy": one.entropy,
                    "token": token,
                    "text": tokenizer.decode([token]),
                    "wanted_text": tokenizer.decode([one.wanted]),
                }
            )
        emitted += len(step.token_ids)
    return {"share": len(tokens) / emitted, "tokens": tokens}


def _lossy(setup: Setup, read: Prefilled) -> Lossy | None:
    if not setup.profile.prunes_the_target:
        return None
    kept = list(read.kept_per_layer)
    every = len(kept) * read.visual_tokens
    return {
        "method": setup.profile.lossy.method,
        "kept": kept,
        "retention": round(sum(kept) / every, 6) if every else None,
    }


def _ensemble(setup: Setup, read: Prefilled, rounds: Sequence[Round]) -> Ensemble | None:
    if not read.contexts:
        return None
    return {
        "weights": {context: list(row) for context, row in weights_by_context(read.contexts, rounds).items()},
        "caption": read.caption,
        "captioner": setup.describe.name if setup.describe else None,
    }
