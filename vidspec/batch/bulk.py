"""A run over many clips: outcomes of an engine become records, counts and events. Knows no model and no terminal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from vidspec.batch.outputs import ONE_CLIP, Output
from vidspec.batch.plan import Plan
from vidspec.batch.records import Settings, record_of
from vidspec.batch.run import exit_code
from vidspec.batch.work import Outcome, Task
from vidspec.errors import OutputError
from vidspec.telling.record import failed

__all__ = ["Engine", "Listener", "Tally", "duration", "execute"]

#: Turns tasks into outcomes, in any order, each as soon as it is known; closing the iterator ends its work.
Engine = Callable[[Iterable[Task]], Iterator[Outcome]]


@dataclass
class Tally:
    """What has happened so far. Clips are counted when their last segment is done, as failed if any of them failed.

    Attributes:
        total: clips of the run, finished earlier or not.
        earlier, earlier_failed, reused: clips that needed no captioning.
        captioned, failed: clips of this run.
        tokens: emitted by this run.
        kinds: failures by ``stage/kind``.
        stopped: why the run ended early, or None.
        began: when, by ``time.monotonic``.
    """

    total: int = 0
    earlier: int = 0
    earlier_failed: int = 0
    reused: int = 0
    captioned: int = 0
    failed: int = 0
    tokens: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    stopped: str | None = None
    began: float = field(default_factory=time.monotonic)
    _open: dict[int, list[bool]] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """Clips finished by this run or before."""
        return self.earlier + self.earlier_failed + self.reused + self.captioned + self.failed

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def clips_per_s(self) -> float:
        return (self.captioned + self.failed) / max(self.seconds, 1e-9)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    @property
    def eta(self) -> float | None:
        """Seconds to the end at this run's own rate; None before its first clip is done."""
        mine = self.captioned + self.failed
        return (self.total - self.done) * self.seconds / mine if mine else None

    def add(self, outcome: Outcome) -> bool:
        """Count an outcome; whether its clip is finished with it."""
        self.tokens += len(outcome.caption.token_ids) if outcome.error is None else 0
        if outcome.caption.error is not None:
            self.kinds[f"{outcome.caption.error['stage']}/{outcome.caption.error['kind']}"] += 1
        work = outcome.work
        results = self._open.setdefault(work.number, [])
        results.append(outcome.error is not None)
        if not work.last:
            return False
        del self._open[work.number]
        failed = any(results)
        self.failed += failed
        self.captioned += not failed
        return True


def duration(seconds: float) -> str:
    """``42 s``, ``3:05`` or ``1:02:03``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class Listener:
    """Is told what happens in a run; this one does nothing."""

    def outcome(self, outcome: Outcome, tally: Tally) -> None:
        """A clip or segment is captioned or has failed, and its record is kept."""

    def ended(self, tally: Tally) -> None:
        """Nothing more happens."""


def execute(
    plan: Plan,
    engine: Engine,
    output: Output,
    settings: Settings,
    tally: Tally,
    listeners: Iterable[Listener] = (),
    *,
    max_failures: int | None = None,
) -> int:
    """Caption what ``plan`` leaves; returns the exit code (see ``vidspec.batch.run.exit_code``).

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
    outcomes = engine(plan.tasks)
    try:
        for outcome in chain(plan.unkept, outcomes):
            try:
                outcome = _kept(outcome, plan, output, settings)
            except OutputError as error:
                tally.stopped = str(error)
                codes.add(error.exit_code)
                break
            tally.add(outcome)
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


def _kept(outcome: Outcome, plan: Plan, output: Output, settings: Settings) -> Outcome:
    """Give a record to ``output``; the outcome, or that it could not be kept.

    Raises:
        OutputError: nothing can be kept any more.
    """
    entry = outcome.work.entry
    assert entry is not None
    if isinstance(outcome.error, OutputError):  # it was known before
        return outcome
    try:
        output.add(entry, record_of(outcome, settings, plan.contents[outcome.work.number]))
    except OutputError as error:
        if error.kind != ONE_CLIP:
            raise
        return Outcome(failed(entry.path, error, profile=outcome.caption.profile), error, outcome.work)
    return outcome
