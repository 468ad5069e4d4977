"""Counters derived from events, and the lengths of the papers, each by its own name. Pure functions, no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vidspec.events.events import Round
from vidspec.events.record import LengthsRecord


@dataclass(frozen=True)
class Counters:
    """Raw counters of one generation. Prefill passes are not counted as forwards.

    ``accepted_lengths`` has one entry per verification: accepted draft tokens, without correction and bonus. Their sum
    is ``accepted``, less the start-up token that a parallel prefill may have accepted.
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


def count_rounds(rounds: Iterable[Round], draft_forwards: int) -> Counters:
    """Count the rounds of one clip. The first is the target's prefill, which yields a token and is not a forward."""
    rows = list(rounds)
    passes = rows[1:]
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


def tau(accepted_lengths: Sequence[int]) -> float | None:
    """Return accepted draft tokens per verification; None without any. ``accepted_lengths`` has one entry for each.

    The start-up token that a parallel prefill accepts is in none of them: the prefill is not a verification.
    """
    return sum(accepted_lengths) / len(accepted_lengths) if accepted_lengths else None


def lengths(counters: Counters) -> LengthsRecord:
    """Return the lengths by name (docs/research/metrics.md, "Lengths").

    ``tau``: see :func:`tau`. ``tokens_per_target_pass``: tokens after the first (which the prefill yields) per target
    forward. ``run_length``: accepted tokens between two corrections, across rounds; the last run counts although the
    end of the text cut it. ``acceptance_rate``: accepted / drafted.
    """
    drafted = counters.drafted > 0
    return {
        "tau": tau(counters.accepted_lengths),
        "tokens_per_target_pass": (counters.emitted - 1) / counters.target_forwards
        if counters.target_forwards
        else None,
        "run_length": counters.accepted / (counters.corrections + 1) if drafted else None,
        "acceptance_rate": counters.accepted / counters.drafted if drafted else None,
    }


def weights_by_context(contexts: Sequence[str], rounds: Iterable[Round]) -> dict[str, tuple[float, ...]]:
    """Return each ensemble context's weight, window by window (TABED Fig. 3); empty without contexts."""
    windows = [one.weights for one in rounds if one.weights]
    return {context: tuple(weights[at] for weights in windows) for at, context in enumerate(contexts)}
