"""Plain decoding, one token per pass of the target: the baseline, on the engine that all methods share."""

from __future__ import annotations

from collections.abc import Iterator

from vidspec.decoding.base import Job
from vidspec.decoding.events import Round
from vidspec.registry import schedules


@schedules.register("autoregressive")
def autoregressive(job: Job) -> Iterator[Round]:
    """Yields one round per token."""
    begun = job.trace.now()
    round_, over = job.opening()
    yield round_
    emitted = list(round_.token_ids)
    while not over:
        start = job.trace.now()
        with job.trace.span("verify"):
            token = job.target.step()
        emitted.append(token)
        over = job.limits.over(emitted)
        now = job.trace.now()
        yield Round((token,), ("target",), 0, 0, elapsed=now - begun, verify_s=now - start)
