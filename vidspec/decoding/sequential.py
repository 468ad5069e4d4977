"""Draft a window, verify it, commit: one after the other (all five papers' common ground)."""

from __future__ import annotations

from vidspec.decoding.base import Job, origins, rejected
from vidspec.engine.requests import Steps, timed
from vidspec.events.events import Round
from vidspec.registry import schedules


@schedules.register("sequential")
def sequential(job: Job) -> Steps[None]:
    """Yields one round per verification.

    The window shrinks at the end of the text so that ``max_new_tokens`` is reached exactly; EOS, or a loop that is to
    be stopped, ends the text even in the middle of an accepted window.
    """
    target, acceptance, trace = job.target, job.acceptance, job.trace
    if job.drafter is None or acceptance is None:
        raise ValueError("the sequential schedule needs a drafter and an acceptance rule")
    begun = trace.now()
    round_, over = job.first_round()
    job.drafter.begin(round_.token_ids[0])
    yield round_
    emitted = list(round_.token_ids)
    while not over:
        drafter, window = job.drafter, job.window
        gamma = min(window.gamma if window else job.gamma, job.limits.max_new_tokens - len(emitted) - 1)
        draft, draft_s = yield from timed(trace, "draft", "draft", drafter.propose, gamma)
        passed, verify_s = yield from timed(trace, "verify", "target", target.verify, draft)
        judged_at = trace.now()
        with trace.span("accept"):
            verdict = acceptance(draft, passed.logits, passed.hidden, job.rng)
        learned_at = trace.now()
        verify_s += learned_at - judged_at
        if drafter.learns:
            with trace.span("draft", "draft"):
                drafter.observe(verdict.path, verdict.token, passed.logits)
            draft_s += trace.now() - learned_at
        if drafter.tapped:
            drafter.observe_states(passed.tapped)
        tokens, over = job.limits.cut([*(draft.tokens[node] for node in verdict.path), verdict.token], emitted)
        with trace.span("rollback"):
            target.commit(verdict.path, verdict.token)
            drafter.commit(verdict.path, verdict.token)
        emitted += tokens
        if window is not None:
            window.judged(len(draft.tokens), verdict.accepted)
        yield Round(
            tuple(tokens),
            origins(verdict, draft, len(tokens)),
            drafted=len(draft.tokens),
            accepted=min(verdict.accepted, len(tokens)),
            elapsed=trace.now() - begun,
            draft_s=draft_s,
            verify_s=verify_s,
            weights=draft.weights,
            gamma=gamma if window is not None else 0,
            loosened=tuple(one for one in verdict.loosened if one.at < len(tokens)),
            rejected=rejected(verdict, draft, len(tokens)),
            probabilities=target.probabilities[: len(tokens)],
        )
    job.drafter.finish(emitted)
