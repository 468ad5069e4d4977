"""The record of a clip from the events it gave: counters from rounds, rates from counters, times from the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vidspec.decoding.limits import ended
from vidspec.embedded import ships
from vidspec.telling.counters import count, estimate_speedup, lengths, weights_by_context
from vidspec.telling.events import Prefilled, Round
from vidspec.telling.record import Caption
from vidspec.telling.trace import Trace

if TYPE_CHECKING:
    from vidspec.decoding.run import Choice
    from vidspec.decoding.setup import Setup
    from vidspec.models.prompt import Question

__all__ = ["Told", "report"]


@dataclass(frozen=True)
class Told:
    """What a run said of a clip; ``finished`` is when its last token came, in seconds of the trace."""

    path: str
    question: Question
    read: Prefilled
    rounds: Sequence[Round]
    draft_forwards: int
    finished: float


def report(
    setup: Setup, told: Told, text: str, models: Mapping[str, Any], trace: Trace, choice: Choice | None = None
) -> Caption:
    """The record of a captioned clip.

    Args:
        setup: the parts that were used.
        told: what happened.
        text: the caption.
        models: what the record says of the models.
        trace: where everything was timed.
        choice: how the schedule was chosen, if it was.
    """
    read, rounds, clip = told.read, told.rounds, told.question.clip
    counters = count(rounds, told.draft_forwards)
    token_ids = [token for step in rounds for token in step.token_ids]
    decode = rounds[-1].elapsed
    return Caption(
        path=told.path,
        caption=text,
        token_ids=token_ids,
        ended=ended(token_ids, setup.target.model.eos),
        lossless=setup.lossless,
        demo=ships(setup.target.model.source),
        profile=setup.profile.name,
        models=dict(models),
        video={
            **asdict(clip.facts),
            "damage": list(clip.facts.damage),
            "frames": len(clip.frames),
            "timestamps": [round(float(t), 6) for t in clip.timestamps],
        },
        counters={
            **asdict(counters),
            "accepted_lengths": list(counters.accepted_lengths),
            "visual_tokens": read.visual_tokens,
            "visual_tokens_kept": len(read.kept),
        },
        lengths=lengths(counters),
        timings={
            **trace.totals(),
            "time_to_first_token": read.elapsed,
            "decode": decode,
            "end_to_end": told.finished,
        },
        speed={
            "tokens_per_s": (len(token_ids) - 1) / decode if decode > 0 else None,
            "estimate": estimate_speedup(rounds),
        },
        schedule=_schedule(choice.kind if choice else setup.profile.schedule.kind, rounds, choice),
        kept_per_frame=list(read.kept_per_frame),
        ensemble=_ensemble(setup, read, rounds),
        loose=None if setup.acceptance is None or setup.acceptance.lossless else _loose(setup, rounds),
        lossy=_lossy(setup, read),
        trace=trace,
    )


def _schedule(kind: str, rounds: Sequence[Round], choice: Choice | None) -> dict[str, Any]:
    parallel = kind == "parallel"
    gammas = [step.gamma for step in rounds if step.gamma]
    return {
        "kind": kind,
        "why": choice.why if choice else None,
        "gamma": gammas[-1] if gammas else None,
        "wasted": sum(step.wasted for step in rounds) if parallel else None,
    }


def _loose(setup: Setup, rounds: Sequence[Round]) -> dict[str, Any]:
    tokenizer = setup.target.model.tokenizer
    tokens: list[dict[str, Any]] = []
    emitted = 0
    for step in rounds:
        for one in step.loosened:
            token = step.token_ids[one.at]
            tokens.append(
                {
                    **asdict(one),
                    "at": emitted + one.at,
                    "token": token,
                    "text": tokenizer.decode([token]),
                    "wanted_text": tokenizer.decode([one.wanted]),
                }
            )
        emitted += len(step.token_ids)
    return {"share": len(tokens) / emitted, "tokens": tokens}


def _lossy(setup: Setup, read: Prefilled) -> dict[str, Any] | None:
    if not setup.profile.prunes_the_target:
        return None
    kept = list(read.kept_per_layer)
    every = len(kept) * read.visual_tokens
    return {
        "method": setup.profile.lossy.method,
        "kept": kept,
        "retention": round(sum(kept) / every, 6) if every else None,
    }


def _ensemble(setup: Setup, read: Prefilled, rounds: Sequence[Round]) -> dict[str, Any] | None:
    if not read.contexts:
        return None
    return {
        "weights": {context: list(row) for context, row in weights_by_context(read.contexts, rounds).items()},
        "caption": read.caption,
        "captioner": setup.describe.name if setup.describe else None,
    }
