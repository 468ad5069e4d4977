"""Plain decoding, one token per pass of the target: the baseline, on the engine that all methods share."""

from __future__ import annotations

from vidspec.decoding.base import Job
from vidspec.engine.requests import Steps, timed
from vidspec.events.events import Round
from vidspec.registry import schedules


@schedules.register("autoregressive", drafts=False)
def autoregressive(job: Job) -> Steps[None]:
    """Yields one round per token."""
    trace = job.trace
    begun = trace.now()
    round_, over = job.first_round()
    yield round_
    emitted = list(round_.token_ids)
    while not over:
        token, seconds = yield from timed(trace, "verify", "target", job.target.step)
        emitted.append(token)
        over = job.limits.over(emitted)
        told = job.target.probabilities
        yield Round((token,), ("target",), 0, 0, elapsed=trace.now() - begun, verify_s=seconds, probabilities=told)
