"""Counters from events, and the lengths the papers print, each by its own name. Pure functions, no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vidspec.decoding.events import Round

__all__ = ["Counters", "count", "lengths"]


@dataclass(frozen=True)
class Counters:
    """Raw counters of one generation. The prefill passes are not counted as forwards.

    ``accepted_lengths`` has one entry per verification: accepted draft tokens, correction and bonus excluded.
    """

    target_forwards: int
    draft_forwards: int
    drafted: int
    accepted: int
    loose: int
    corrections: int
    bonus: int
    emitted: int
    accepted_lengths: tuple[int, ...]


def count(rounds: Iterable[Round], draft_forwards: int) -> Counters:
    """Fold the rounds of one clip. A round of the target's prefill (nothing drafted or verified) is no forward."""
    rows = list(rounds)
    passes = [row for row in rows if row.verify_s > 0]
    origins = [origin for row in rows for origin in row.origins]
    return Counters(
        target_forwards=len(passes),
        draft_forwards=draft_forwards,
        drafted=sum(row.drafted for row in rows),
        accepted=sum(row.accepted for row in rows),
        loose=origins.count("loose"),
        corrections=origins.count("correction"),
        bonus=origins.count("bonus"),
        emitted=len(origins),
        accepted_lengths=tuple(row.accepted for row in passes if row.drafted),
    )


def lengths(counters: Counters) -> dict[str, float | None]:
    """The length columns of METRICS.

    ``tau``: accepted draft tokens per verification. ``tokens_per_target_pass``: tokens after the first (which the
    prefill gives) per target forward. ``run_length``: accepted tokens between two corrections, across rounds; the last
    run counts although the text ended it. ``acceptance_rate``: accepted / drafted.
    """
    windows = len(counters.accepted_lengths)
    drafted = counters.drafted > 0
    return {
        "tau": counters.accepted / windows if windows else None,
        "tokens_per_target_pass": (counters.emitted - 1) / counters.target_forwards
        if counters.target_forwards
        else None,
        "run_length": counters.accepted / (counters.corrections + 1) if drafted else None,
        "acceptance_rate": counters.accepted / counters.drafted if drafted else None,
    }
