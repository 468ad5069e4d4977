"""Counts finished clips of a run and its speed. Knows neither inputs nor outputs."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from vidspec.events.record import Caption


@dataclass
class Tally:
    """Counts of a run so far. A clip counts when its last segment is done, as failed if any segment failed.

    Attributes:
        total: clips of the run, finished earlier or not.
        earlier, earlier_failed, kept: clips that needed no captioning.
        captioned, failed: clips of this run.
        unkept: failed clips without a record.
        tokens: emitted by this run.
        kinds: failures by ``stage/kind``.
        waited: share of the time in which the models waited for frames, from 0 to 1; None if they ran elsewhere.
        stopped: reason if the run ended early, or None.
        began: start, by ``time.monotonic``.
    """

    total: int = 0
    earlier: int = 0
    earlier_failed: int = 0
    kept: int = 0
    captioned: int = 0
    failed: int = 0
    unkept: int = 0
    tokens: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    waited: float | None = None
    stopped: str | None = None
    began: float = field(default_factory=time.monotonic)
    _failed: set[int] = field(default_factory=set)  # clips with a failed segment and more to come

    @property
    def done(self) -> int:
        """Clips finished by this run or before."""
        return self.earlier + self.earlier_failed + self.kept + self.captioned + self.failed

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

    def counts(self) -> dict[str, object]:
        """Return the progress of the run as plain values, for logs."""
        return {
            "total": self.total,
            "earlier": self.earlier + self.earlier_failed + self.kept,
            "captioned": self.captioned,
            "failed": self.failed,
            "seconds": round(self.seconds, 3),
            "clips_per_s": round(self.clips_per_s, 4),
            "clips_per_hour": round(3600 * self.clips_per_s, 1),
            "waited_for_frames": None if self.waited is None else round(self.waited, 4),
            "tokens_per_s": round(self.tokens_per_s, 2),
            "eta_s": None if self.eta is None else round(self.eta, 1),
        }

    def add(self, number: int, caption: Caption, *, last: bool = True) -> bool:
        """Count the result of clip ``number`` or of one of its segments; return True if the clip is finished."""
        error = caption.error
        if error is None:
            self.tokens += len(caption.token_ids)
        else:
            self.kinds[f"{error['stage']}/{error['kind']}"] += 1
            self._failed.add(number)
        if not last:
            return False
        self.failed += number in self._failed
        self.captioned += number not in self._failed
        self._failed.discard(number)
        return True


def counted(count: int, noun: str) -> str:
    """Format as ``1 clip`` or ``3 clips``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_duration(seconds: float) -> str:
    """Format as ``42 s``, ``3:05`` or ``1:02:03``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
