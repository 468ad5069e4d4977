"""The sequential schedule: draft a window, verify it, commit (all five papers' common ground)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec.decoding.schedules.autoregressive import plain_round
from vidspec.decoding.sequence import Sequence
from vidspec.engine.requests import Steps
from vidspec.events.events import Origin, RejectedToken, Round
from vidspec.schedule import Schedule, schedules

if TYPE_CHECKING:
    from vidspec.acceptance.base import Verdict
    from vidspec.drafting.base import Draft


def sequential(sequence: Sequence) -> Steps[None]:
    """Emit one round per verification.

    A round without a draft is a plain decoding step; the drafter reads its token before it drafts again. The window
    shrinks at the end of the text so that ``max_new_tokens`` is reached exactly; EOS, or a loop that is to be stopped,
    ends the text even in the middle of an accepted window.
    """
    target, drafter, acceptance = sequence.target, sequence.drafter, sequence.acceptance
    trace, limits, window = sequence.trace, sequence.limits, sequence.window
    if drafter is None or acceptance is None:
        raise ValueError("the sequential schedule needs a drafter and an acceptance rule")
    observes = drafter.learns or bool(drafter.tapped)  # needs every pass
    rests = window.rest if window is not None and not observes else drafter.rest
    begun = trace.now()
    over = sequence.emit_first()
    drafter.begin(sequence.token_ids[0])
    unread = 0  # emitted tokens that the drafter has not read
    while not over:
        if rests():
            over = yield from plain_round(sequence, begun)
            unread += 1
            drafter.declined += 1
            continue
        if unread:
            drafter.catch_up(sequence.token_ids[-unread:])
            unread = 0
        left = limits.max_new_tokens - len(sequence.token_ids) - 1
        gamma = min(window.gamma if window else sequence.gamma, left)
        drafter.declined += left > 0 and not gamma
        trace.begin()
        draft = yield from drafter.propose(gamma)
        draft_s = trace.lap("draft", "draft")
        passed = yield from target.verify(draft)
        verify_s = trace.lap("verify")
        verdict = acceptance(draft, passed, sequence.rng)
        verify_s += trace.lap("accept")
        if drafter.learns:
            drafter.observe(verdict.path, verdict.token, passed)
            draft_s += trace.lap("draft", "draft")
        if passed.tapped is not None:
            drafter.observe_states(passed.tapped)
        tokens, over = limits.cut([*map(draft.tokens.__getitem__, verdict.path), verdict.token], sequence.token_ids)
        trace.begin()
        target.commit(verdict.path, verdict.token)
        drafter.commit(verdict.path, verdict.token)
        trace.lap("rollback")
        if window is not None:
            window.update(len(draft.tokens), len(verdict.path))
        texts, rejected_tokens = sequence.texts(tokens, rejected(verdict, draft, len(tokens)))
        sequence.emit(
            Round(
                tuple(tokens),
                origins(verdict, draft, len(tokens)),
                drafted=len(draft.tokens),
                accepted=min(len(verdict.path), len(tokens)),
                elapsed=trace.elapsed() - begun,
                draft_s=draft_s,
                verify_s=verify_s,
                texts=texts,
                weights=draft.weights,
                gamma=gamma if window is not None else 0,
                loosened=verdict.loosened and tuple(loose for loose in verdict.loosened if loose.at < len(tokens)),
                rejected=rejected_tokens,
                probabilities=target.probabilities[: len(tokens)],
            )
        )


def origins(verdict: Verdict, draft: Draft, emitted: int) -> tuple[Origin, ...]:
    """Return the origins of the first ``emitted`` tokens of a verified window."""
    path, names = verdict.path, list[Origin](["draft"]) * len(verdict.path)
    for loose in verdict.loosened:
        names[loose.at] = "loose"
    followed = len(path) < len(draft.tokens) if draft.is_chain else draft.children(path[-1] if path else -1)
    names.append("target" if not draft.tokens else "correction" if followed else "bonus")
    return tuple(names[:emitted])


def rejected(verdict: Verdict, draft: Draft, emitted: int) -> tuple[RejectedToken, ...]:
    """Return the rejected drafted tokens at the positions of the first ``emitted`` tokens of a verified window."""
    path = verdict.path
    if draft.is_chain:
        at = len(path)
        return (RejectedToken(at, draft.tokens[at]),) if at < min(emitted, len(draft.tokens)) else ()
    before = (-1, *path)[:emitted]
    return tuple(
        RejectedToken(at, draft.tokens[node])
        for at, parent in enumerate(before)
        for node in draft.children(parent)
        if node not in path
    )


@schedules.register("sequential")
class Sequential(Schedule):
    run = staticmethod(sequential)
