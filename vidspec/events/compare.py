"""Compares two records of the same clip: token equality and speed-up. Runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from vidspec.events.record import BaselineRecord, Caption

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
