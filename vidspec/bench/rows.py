"""Rows of a bench: figures of each method, clip by clip against the baseline, and their table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from types import MappingProxyType
from typing import TypeAlias

from vidspec.bench.tables import cell, heading, left_out_rows, spread, table
from vidspec.config.schema import Profile
from vidspec.events.compare import decode_rate, tau, time_at_length
from vidspec.events.record import Caption

#: Records by contender and clip, one for each repeat.
Records: TypeAlias = Mapping[str, Mapping[str, Sequence[Caption]]]


@dataclass(frozen=True)
class BenchRow:
    """One contender over all clips. Speed-ups are medians over clips of ratios to the baseline on the same clip.

    Attributes:
        name: of the contender.
        equal: clips with the baseline's token ids; None if it and the baseline sample from the same distributions with
            other draws, so that token ids cannot be compared.
        clips: clips measured.
        tau, tokens_per_target_pass, run_length, acceptance_rate: pooled over clips; None if nothing was drafted.
        kept: share of visual tokens the draft saw; None without a draft.
        tokens_per_s: median decode rate.
        rate_spread: its minimum and maximum over clips.
        also: other names of the same contender.
        retention: mean share of the visual tokens that a block of a pruned target reads; None if not pruned.
        context: mean entries in the target's cache while decoding: visual tokens and half of the text; None for peers.
        first, decode, end_to_end: speed-ups over the baseline: (median, minimum, maximum); ``end_to_end`` for texts of
            the baseline's length (:func:`~vidspec.events.compare.time_at_length`).
        end_to_end_raw: the same for the texts as they are, which loose and lossy methods may write shorter or longer.
        tokens: mean over its texts, the end token included.
    """

    name: str
    equal: int | None
    clips: int
    tau: float | None
    tokens_per_target_pass: float | None
    kept: float | None
    tokens_per_s: float
    first: tuple[float, float, float]
    decode: tuple[float, float, float]
    end_to_end: tuple[float, float, float]
    run_length: float | None = None
    acceptance_rate: float | None = None
    rate_spread: tuple[float, float] = (0.0, 0.0)
    context: float | None = None
    also: tuple[str, ...] = ()
    retention: float | None = None
    tokens: float | None = None
    end_to_end_raw: tuple[float, float, float] | None = None

    @property
    def names(self) -> str:
        return " = ".join((self.name, *self.also))

    @property
    def equality(self) -> str:
        """Cell for ``equal``."""
        return "in distribution" if self.equal is None else f"{self.equal}/{self.clips}"


def bench_rows(
    records: Records,
    baseline: str,
    drawn: Collection[str] = (),
    *,
    also: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[BenchRow]:
    """Return one row per contender; for each clip the median over repeats is compared with the baseline's.

    Args:
        records: by contender and clip.
        baseline: a contender.
        drawn: contenders of :func:`methods_with_other_draws`.
        also: further names of contenders.
    """
    return [
        _row(name, by_clip, records[baseline], name in drawn, tuple(also.get(name, ())))
        for name, by_clip in records.items()
    ]


def _row(
    name: str,
    by_clip: Mapping[str, Sequence[Caption]],
    plain: Mapping[str, Sequence[Caption]],
    drawn: bool,
    also: tuple[str, ...],
) -> BenchRow:
    same = sum(all(one.token_ids == plain[clip][0].token_ids for one in some) for clip, some in by_clip.items())
    runs = [one for some in by_clip.values() for one in some]
    first, decode, whole = zip(*(speed_ups(some, plain[clip]) for clip, some in by_clip.items()), strict=True)
    rates = [median_rate(some) for some in by_clip.values()]
    drafting = [run.counters for run in runs if run.counters.get("drafted")]
    total = Counter[str]()
    for one in drafting:
        total.update({key: value for key, value in one.items() if isinstance(value, int)})
    segments = total["corrections"] + len(drafting)  # runs of accepted tokens, separated by corrections
    context = [
        run.counters["visual_tokens"] + len(run.token_ids) / 2 for run in runs if "visual_tokens" in run.counters
    ]
    shares = [run.lossy["retention"] for run in runs if run.lossy]
    retentions = [share for share in shares if share is not None]
    return BenchRow(
        name=name,
        equal=None if drawn else same,
        clips=len(by_clip),
        also=also,
        tau=tau([length for one in drafting for length in one["accepted_lengths"]]),
        tokens_per_target_pass=_ratio(total["emitted"] - len(drafting), total["target_forwards"]),
        kept=_ratio(total["visual_tokens_kept"], total["visual_tokens"]),
        tokens_per_s=median(rates),
        first=_spread(first),
        decode=_spread(decode),
        end_to_end=_spread(whole),
        run_length=_ratio(total["accepted"], segments),
        acceptance_rate=_ratio(total["accepted"], total["drafted"]),
        rate_spread=(min(rates), max(rates)),
        context=fmean(context) if context else None,
        retention=fmean(retentions) if retentions else None,
        tokens=fmean(len(run.token_ids) for run in runs),
        end_to_end_raw=_spread(
            [_time(plain[clip], "end_to_end") / _time(some, "end_to_end") for clip, some in by_clip.items()]
        ),
    )


def turn_label(name: str, turn: int) -> str:
    """Return the name of a contender in a turn of a dialogue, from 0."""
    return f"{name}, turn {turn + 1}" if turn else name


def methods_with_other_draws(profiles: Mapping[str, Profile], baseline: str) -> tuple[str, ...]:
    """Return lossless methods that sample from the baseline's distributions but need not draw the same tokens.

    Equal seeds give equal tokens where both are plain decoding's (``Profile.token_for_token``).
    """
    plain = profiles[baseline]
    return tuple(
        name
        for name, one in profiles.items()
        if name != baseline
        and plain.generate.temperature > 0
        and _distribution(one) == _distribution(plain)
        and not (one.token_for_token and plain.token_for_token and one.generate.seed == plain.generate.seed)
    )


def _distribution(profile: Profile) -> tuple[object, ...]:
    """Return the settings that, with target and clip, determine the sampling distributions."""
    return profile.video, profile.lossy, profile.generate.model_dump(exclude={"seed"})


def speed_ups(runs: Sequence[Caption], plain: Sequence[Caption]) -> tuple[float, float, float]:
    """Return first token, decode and end to end of one clip: medians over repeats against plain decoding's.

    End to end is plain decoding's time over the method's time at plain decoding's number of tokens; 0, as for decode,
    if a text of one token gives no rate.
    """
    tokens = len(plain[0].token_ids)
    whole = median(math.inf if (time := time_at_length(run, tokens)) is None else time for run in runs)
    return (
        _time(plain, "time_to_first_token") / _time(runs, "time_to_first_token"),
        median_rate(runs) / median_rate(plain),
        _time(plain, "end_to_end") / whole,
    )


def markdown(
    rows: Sequence[BenchRow],
    baseline: str,
    limit: Callable[[float], float],
    left: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the table: one line per row.

    There is a column for lengths if some texts differ from the baseline's, and one for the share of visual tokens that
    a pruned target reads if a row has it.

    Args:
        rows: as :func:`bench_rows` returns them.
        baseline: the name of the first.
        limit: plain passes per second that the memory bandwidth allows over a cache of so many entries.
        left: reasons for missing methods, by name; each has a line.
    """
    header = (
        f"{heading(row.also for row in rows)} | "
        f"same tokens as {baseline} | tau | tokens / target pass | run length | acceptance | "
        "visual tokens kept | tokens/s | share of limit | first token | decode"
    ).split(" | ")
    differ = any(row.equal != row.clips for row in rows)
    header += ["mean tokens", "end to end at the baseline's length"] if differ else ["end to end"]
    pruned = any(row.retention is not None for row in rows)
    header += ["target reads"] * pruned
    lines = []
    for row in rows:
        passes = row.tokens_per_s / (row.tokens_per_target_pass or 1.0)
        lines.append(
            [
                row.names,
                row.equality,
                cell(row.tau),
                cell(row.tokens_per_target_pass),
                cell(row.run_length),
                cell(row.acceptance_rate, ".0%"),
                cell(row.kept, ".0%"),
                spread((row.tokens_per_s, *row.rate_spread), ".0f", ""),
                cell(None if row.context is None else passes / limit(row.context), ".0%"),
                spread(row.first),
                spread(row.decode),
                *([cell(row.tokens, ".1f")] if differ else ()),
                spread(row.end_to_end),
                *[cell(row.retention, ".1%")] * pruned,
            ]
        )
    return table(header, [*lines, *left_out_rows(left, len(header))])


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _time(runs: Sequence[Caption], name: str) -> float:
    return median(run.timings[name] for run in runs)


def median_rate(runs: Sequence[Caption]) -> float:
    """Return the median of the decode rates of one clip, in tokens per second; one without a rate counts as 0."""
    return median(decode_rate(run) or 0.0 for run in runs)


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return median(values), min(values), max(values)
