"""A run over many clips: outcomes of an executor become records, counts and events. Knows no model and no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from vidspec.dataset.job import Job, Outcome
from vidspec.dataset.outputs import ONE_CLIP, Output
from vidspec.dataset.plan import Remaining
from vidspec.dataset.records import Settings, record_of
from vidspec.dataset.run import exit_code
from vidspec.errors import OutputError
from vidspec.events.record import failed
from vidspec.events.tally import Tally

__all__ = ["Executor", "Listener", "execute"]

#: Turns jobs into outcomes, in any order, each as soon as it is known; closing the iterator ends its work.
Executor = Callable[[Iterable[Job]], Iterator[Outcome]]


class Listener:
    """Is told what happens in a run; this one does nothing."""

    def outcome(self, outcome: Outcome, tally: Tally) -> None:
        """A clip or segment is captioned or has failed, and its record is kept."""

    def ended(self, tally: Tally) -> None:
        """Nothing more happens."""


def execute(
    plan: Remaining,
    engine: Executor,
    output: Output,
    settings: Settings,
    tally: Tally,
    listeners: Iterable[Listener] = (),
    *,
    max_failures: int | None = None,
) -> int:
    """Caption what ``plan`` leaves; returns the exit code (see ``vidspec.dataset.run.exit_code``).

    Args:
        plan, settings: what to do, and how.
        engine: does it.
        output: keeps a record before anyone hears of it. A clip whose record it cannot keep has failed; the run ends
            where it can keep no more.
        tally: counts; its ``stopped`` says why the run ended early.
        listeners: are told.
        max_failures: the run ends with this many failed clips.
    """
    listeners = tuple(listeners)
    codes: set[int] = set()  # and not the errors themselves, whose tracebacks hold the frames of their clips
    outcomes = engine(plan.jobs)
    try:
        for outcome in chain(plan.unkept, outcomes):
            try:
                outcome = _kept(outcome, plan, output, settings)
            except OutputError as error:
                tally.stopped = str(error)
                codes.add(error.exit_code)
                break
            tally.add(outcome.job.number, outcome.caption, last=outcome.job.last)
            codes.add(exit_code([outcome.error]))
            for listener in listeners:
                listener.outcome(outcome, tally)
            if max_failures is not None and tally.failed >= max_failures and tally.done < tally.total:
                tally.stopped = f"{tally.failed} failed, as many as --max-failures allows"
                break
    finally:
        close = getattr(outcomes, "close", None)
        if close is not None:
            close()
        for listener in listeners:
            listener.ended(tally)
    return max(codes, default=0)


def _kept(outcome: Outcome, plan: Remaining, output: Output, settings: Settings) -> Outcome:
    """Give a record to ``output``; the outcome, or that it could not be kept.

    Raises:
        OutputError: nothing can be kept any more.
    """
    job = outcome.job
    if isinstance(outcome.error, OutputError):  # it was known before
        return outcome
    try:
        output.add(job.whole, record_of(outcome, settings, plan.contents[job.number]))
    except OutputError as error:
        if error.kind != ONE_CLIP:
            raise
        return Outcome(failed(job.path, error, profile=outcome.caption.profile), error, job)
    return outcome
