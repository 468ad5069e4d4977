"""Draft a window, verify it, commit: one after the other (all five papers' common ground)."""

from __future__ import annotations

from collections.abc import Iterator

from vidspec.decoding.base import Job, origins
from vidspec.decoding.events import Round
from vidspec.drafting.base import Learner
from vidspec.registry import schedules


@schedules.register("sequential")
def sequential(job: Job) -> Iterator[Round]:
    """Yields one round per verification.

    The window shrinks at the end of the text so that ``max_new_tokens`` is reached exactly; EOS, or a loop that is to
    be stopped, ends the text even in the middle of an accepted window.
    """
    target, acceptance, trace = job.target, job.acceptance, job.trace
    if job.drafter is None or acceptance is None:
        raise ValueError("the sequential schedule needs a drafter and an acceptance rule")
    begun = trace.now()
    round_, over = job.opening()
    job.drafter.begin(round_.token_ids[0])
    yield round_
    emitted = list(round_.token_ids)
    while not over:
        drafter, window = job.drafter, job.window
        gamma = min(window.gamma if window else job.gamma, job.limits.max_new_tokens - len(emitted) - 1)
        start = trace.now()
        with trace.span("draft", "draft"):
            draft = drafter.propose(gamma)
        drafted_at = trace.now()
        with trace.span("verify"):
            passed = target.verify(draft)
        with trace.span("accept"):
            verdict = acceptance(draft, passed.logits, passed.hidden, job.rng)
        verified_at = trace.now()
        if isinstance(drafter, Learner):
            with trace.span("draft", "draft"):
                drafter.observe(verdict.path, verdict.token, passed.logits)
        learned_at = trace.now()
        tokens, over = job.limits.cut([*(draft.tokens[node] for node in verdict.path), verdict.token], emitted)
        with trace.span("rollback"):
            target.commit(verdict.path, verdict.token)
            drafter.commit(verdict.path, verdict.token)
        emitted += tokens
        if window is not None:
            window.judged(
                len(draft.tokens),
                verdict.accepted,
                drafted_at - start + learned_at - verified_at,
                verified_at - drafted_at,
            )
        yield Round(
            tuple(tokens),
            origins(verdict, draft, len(tokens)),
            drafted=len(draft.tokens),
            accepted=min(verdict.accepted, len(tokens)),
            elapsed=trace.now() - begun,
            draft_s=drafted_at - start + learned_at - verified_at,
            verify_s=verified_at - drafted_at,
            weights=draft.weights,
            gamma=gamma if window is not None else 0,
            loosened=tuple(one for one in verdict.loosened if one.at < len(tokens)),
        )
