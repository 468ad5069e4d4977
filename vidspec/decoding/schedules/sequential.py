"""The sequential schedule: draft a window, verify it, read what is emitted (all five papers' common ground)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from vidspec.decoding.schedules.autoregressive import plain_round
from vidspec.decoding.sequence import Sequence
from vidspec.engine.requests import Steps
from vidspec.events.events import Origin, Round
from vidspec.schedule import Schedule, schedules

if TYPE_CHECKING:
    from vidspec.acceptance.base import Verdict

__all__ = ["sequential"]


def sequential(sequence: Sequence) -> Steps[None]:
    """Continue a text after its first token, a round per verification.

    A round without a draft is a plain decoding step. The window
    shrinks at the end of the text so that ``max_new_tokens`` is reached exactly; EOS, or a loop that is to be stopped,
    ends the text even in the middle of an accepted window.
    """
    from vidspec.decoding.target import verify  # imports torch, which a profile is checked without

    drafting, trace, limits = sequence.drafting, sequence.trace, sequence.limits
    if drafting is None or sequence.target.acceptance is None:
        raise ValueError("the sequential schedule needs a drafter and an acceptance rule")
    drafter, window = drafting.drafter, drafting.window
    rests, over = drafter.rest if window is None else window.rest, False
    while not over:
        if rests():
            over = yield from plain_round(sequence)
            drafter.declined += 1
            if window is not None:
                window.update(0, 0)
            continue
        left = limits.max_new_tokens - len(sequence.token_ids) - 1
        gamma = min(window.gamma if window else drafting.gamma, left)
        drafter.declined += left > 0 and not gamma
        trace.lap()
        draft = yield from drafter.propose(gamma)
        draft_s = trace.lap("draft", "draft")
        verdict, passed = yield from verify(sequence, draft)
        written = verdict.tokens
        drafter.read(written, passed)
        trace.lap("rollback")
        if window is not None:
            window.update(len(draft.tokens), len(verdict.path))
        tokens, over = limits.cut(written, sequence.token_ids)
        measured = trace.lapped - sequence.text_start, draft_s, gamma if window is not None else 0
        made = partial(make_round, sequence, drafter.origin, tokens, verdict, *measured)
        sequence.emit_round(tokens, made, last=over)


def make_round(
    sequence: Sequence,
    drafted: Origin,
    tokens: tuple[int, ...],
    verdict: Verdict,
    elapsed: float,
    draft_s: float = 0.0,
    gamma: int = 0,
) -> Round:
    """Add the tokens of a verified window to the text and return the window's event.

    Args:
        sequence: the clip.
        drafted: origin of drafted tokens.
        tokens: those that are emitted.
        verdict: the target's.
        elapsed: seconds since ``Prefilled``.
        draft_s: seconds of drafting.
        gamma: the window in force, if it is chosen by measurement.
    """
    emitted, draft = len(tokens), verdict.draft
    texts, rejected = sequence.add_text(tokens, verdict.rejected)
    origins = verdict.origins[:emitted]
    if drafted != "draft":
        origins = tuple([drafted if origin == "draft" else origin for origin in origins])
    return Round(
        tokens,
        origins,
        drafted=len(draft.tokens),
        accepted=min(len(verdict.path), emitted),
        elapsed=elapsed,
        draft_s=draft_s,
        verify_s=verdict.seconds,
        texts=texts,
        weights=draft.weights,
        gamma=gamma,
        loosened=verdict.loosened and tuple([loose for loose in verdict.loosened if loose.at < emitted]),
        rejected=rejected,
        probabilities=verdict.probabilities[:emitted],
    )


@schedules.register("sequential")
class Sequential(Schedule):
    @staticmethod
    def run(sequence: Sequence) -> Steps[None]:
        from vidspec.decoding.prefill import prefill

        if not (yield from prefill(sequence)):
            yield from sequential(sequence)
