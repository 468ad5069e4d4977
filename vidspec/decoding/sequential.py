"""Draft a window, verify it, commit: one after the other (all five papers' common ground)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec.decoding.sequence import Sequence
from vidspec.engine.requests import Steps
from vidspec.events.events import Origin, Rejected, Round
from vidspec.registry import schedules

if TYPE_CHECKING:
    from vidspec.acceptance.base import Verdict
    from vidspec.drafting.base import Draft


@schedules.register("sequential")
def sequential(sequence: Sequence) -> Steps[None]:
    """Emits one round per verification.

    The window shrinks at the end of the text so that ``max_new_tokens`` is reached exactly; EOS, or a loop that is to
    be stopped, ends the text even in the middle of an accepted window.
    """
    target, drafter, acceptance = sequence.target, sequence.drafter, sequence.acceptance
    trace, limits, window = sequence.trace, sequence.limits, sequence.window
    if drafter is None or acceptance is None:
        raise ValueError("the sequential schedule needs a drafter and an acceptance rule")
    begun = trace.now()
    over = sequence.emit_first()
    drafter.begin(sequence.token_ids[0])
    while not over:
        left = limits.max_new_tokens - len(sequence.token_ids) - 1
        gamma = min(window.gamma if window else sequence.gamma, left)
        with trace.span("draft", "draft") as drafting:
            draft = yield from drafter.propose(gamma)
        with trace.span("verify") as verification:
            passed = yield from target.verify(draft)
        with trace.span("accept") as judging:
            verdict = acceptance(draft, passed, sequence.rng)
        draft_s = drafting.seconds
        if drafter.learns:
            with trace.span("draft", "draft") as learning:
                drafter.observe(verdict.path, verdict.token, passed)
            draft_s += learning.seconds
        if passed.tapped is not None:
            drafter.observe_states(passed.tapped)
        emitted = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        tokens, over = limits.cut(emitted, sequence.token_ids)
        with trace.span("rollback"):
            target.commit(verdict.path, verdict.token)
            drafter.commit(verdict.path, verdict.token)
        if window is not None:
            window.judged(len(draft.tokens), len(verdict.path))
        sequence.emit(
            Round(
                tuple(tokens),
                origins(verdict, draft, len(tokens)),
                drafted=len(draft.tokens),
                accepted=min(len(verdict.path), len(tokens)),
                elapsed=trace.elapsed() - begun,
                draft_s=draft_s,
                verify_s=verification.seconds + judging.seconds,
                weights=draft.weights,
                gamma=gamma if window is not None else 0,
                loosened=tuple(one for one in verdict.loosened if one.at < len(tokens)),
                rejected=rejected(verdict, draft, len(tokens)),
                probabilities=target.probabilities[: len(tokens)],
            )
        )


def origins(verdict: Verdict, draft: Draft, emitted: int) -> tuple[Origin, ...]:
    """The origins of the first ``emitted`` tokens of a verified window."""
    loose = verdict.loose
    names: list[Origin] = ["loose" if node in loose else "draft" for node in verdict.path]
    end = verdict.path[-1] if verdict.path else -1
    names.append("target" if not draft.tokens else "correction" if draft.children(end) else "bonus")
    return tuple(names[:emitted])


def rejected(verdict: Verdict, draft: Draft, emitted: int) -> tuple[Rejected, ...]:
    """The rejected drafted tokens at the positions of the first ``emitted`` tokens of a verified window."""
    path = verdict.path
    if draft.is_chain:
        at = len(path)
        return (Rejected(at, draft.tokens[at]),) if at < min(emitted, len(draft.tokens)) else ()
    before = (-1, *path)[:emitted]
    return tuple(
        Rejected(at, draft.tokens[node])
        for at, parent in enumerate(before)
        for node in draft.children(parent)
        if node not in path
    )
