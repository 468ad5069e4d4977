"""Counters and the papers' lengths from rounds; token equality and speed-up of two records. Pure, no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from vidspec.events.events import Round
from vidspec.events.record import BaselineRecord, Caption, LengthsRecord


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


__all__ = ["decode_rate", "estimate_speedup", "first_difference", "speed_against", "time_at_length"]

#: Tokens after the first that a decode measurement needs: fewer take only a window or two.
MIN_TOKENS = 16


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Return the first position at which two token sequences differ, length included; None if they are equal."""
    pairs = enumerate(zip_longest(left, right))
    return next((position for position, (a, b) in pairs if a != b), None)


def decode_rate(caption: Caption) -> float | None:
    """Return the decode rate: tokens after the first over the time after the first (metrics.md, Times)."""
    tokens, seconds = len(caption.token_ids) - 1, caption.timings.get("decode", 0.0)
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def estimate_speedup(tokens: int, decode_s: float, plain_step_s: float | None) -> float | None:
    """Estimate the decode speed-up of :func:`speed_against` from the time of some plain steps.

    Args:
        tokens: number of tokens of the method's text.
        decode_s: seconds of the method from its first token to its last.
        plain_step_s: seconds per token of plain decoding; None if it was not timed.

    Returns:
        None without ``plain_step_s``, or for a text with fewer than :data:`MIN_TOKENS` tokens after the first.
    """
    if plain_step_s is None or tokens <= MIN_TOKENS or decode_s <= 0:
        return None
    return plain_step_s * (tokens - 1) / decode_s


def time_at_length(caption: Caption, tokens: int) -> float | None:
    """Return the seconds from the opened file to the last token for a text of ``tokens`` (at least 1) tokens.

    time to first token + the draft's reading + (tokens - 1) * seconds per token after both (metrics.md, Times); the
    measured time end to end if the text has that length. None if a text of one token, or a missing timing, gives no
    rate.
    """
    timings, written = caption.timings, len(caption.token_ids) - 1
    if written + 1 == tokens:
        return timings.get("end_to_end")
    first, reading = timings.get("time_to_first_token"), timings.get("draft_reading", 0.0)
    decoding = timings.get("decode", 0.0) - reading
    if first is None or (tokens > 1 and (written < 1 or decoding <= 0)):
        return None
    return first + (reading + (tokens - 1) * decoding / written if tokens > 1 else 0.0)


def speed_against(method: Caption, plain: Caption) -> BaselineRecord:
    """Return the ``speed.baseline`` object: figures of plain decoding and three speed-ups over it, at its length.

    Args:
        method: the record of the method.
        plain: the record of plain decoding of the same clip by the same engine.

    Returns:
        ``timings`` (seconds), ``tokens`` (count) and ``tokens_per_s`` of ``plain``. Ratios above 1 where ``method`` is
        faster, None if one of the two was not measured: ``time_to_first_token`` and ``end_to_end`` of times, the latter
        by :func:`time_at_length` at the length of ``plain`` (``end_to_end_raw``: of both texts as they are), ``decode``
        of token rates, also None if a text has fewer than :data:`MIN_TOKENS` tokens after the first.
    """
    long = min(len(method.token_ids), len(plain.token_ids)) > MIN_TOKENS
    return {
        "timings": dict(plain.timings),
        "tokens": len(plain.token_ids),
        "tokens_per_s": decode_rate(plain),
        "time_to_first_token": _ratio(
            plain.timings.get("time_to_first_token"), method.timings.get("time_to_first_token")
        ),
        "decode": _ratio(decode_rate(method), decode_rate(plain)) if long else None,
        "end_to_end": _ratio(plain.timings.get("end_to_end"), time_at_length(method, len(plain.token_ids))),
        "end_to_end_raw": _ratio(plain.timings.get("end_to_end"), method.timings.get("end_to_end")),
    }


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator and denominator else None
