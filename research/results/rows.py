"""Rows of a bench with what needs statistics: places, differences from noise, and the speed model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean, median
from types import MappingProxyType
from typing import TypeVar

from research import speed
from research.compare import is_significant, places
from vidspec.bench.measure import BenchResult
from vidspec.bench.results import StoredRun, read_results, restore_caption
from vidspec.bench.rows import BenchRow, Records, median_rate, speed_ups, turn_label
from vidspec.bench.tables import cell, heading, spread, table
from vidspec.errors import UsageError
from vidspec.events.record import Caption

R = TypeVar("R", bound=BenchRow)


@dataclass(frozen=True)
class StudiedRow(BenchRow):
    """A row of a bench, and what its records show beyond their medians.

    Attributes:
        place: rank by decode, from 1; methods that do not differ share one (:func:`~research.compare.places`).
            None with fewer than two clips.
        noise: those of ``first``, ``decode`` and ``end_to_end`` that do not differ from 1 by more than noise
            (:func:`~research.compare.is_significant`); None with too few clips, and for the baseline.
        model: the decode speed-up of the speed model from the measured times and lengths; None without a draft.
        accepted_by_target: share of its tokens that the unpruned target would choose; None if not measured
            (:mod:`research.judging` does).
    """

    place: int | None = None
    noise: tuple[str, ...] | None = None
    model: float | None = None
    accepted_by_target: float | None = None

    def mark(self, figure: str) -> str:
        """Return the mark of a figure that is within noise, as tables append it."""
        return " ns" if self.noise and figure in self.noise else ""


@dataclass(frozen=True, kw_only=True)
class StudiedBench(BenchResult):
    """Result of a bench with its rows studied."""

    studied: list[StudiedRow]


def read_bench(file: Path) -> tuple[list[BenchRow], Records, StoredRun]:
    """Return rows, records and the whole content of a finished bench's results.

    Raises:
        UsageError: it has not finished.
        OutputError: it holds no results.
    """
    content = read_results(file)
    if "rows" not in content:
        raise UsageError(f"{file}: that bench has not finished", hint="the command that began it continues it")
    records: dict[str, dict[str, list[Caption]]] = {}
    for one in content["records"]:
        records.setdefault(one["contender"], {}).setdefault(one["path"], []).append(restore_caption(one))
    known = {one.name for one in fields(BenchRow)}
    rows = [BenchRow(**{key: value for key, value in row.items() if key in known}) for row in content["rows"]]
    return rows, records, content


def study(
    rows: Sequence[BenchRow], records: Records, accepted: Mapping[str, float] = MappingProxyType({})
) -> list[StudiedRow]:
    """Return the rows of a bench with what its records show; each turn of a dialogue by itself.

    Args:
        rows: the baseline first.
        records: by contender and clip.
        accepted: shares of tokens that the target accepts, by contender, if they were measured.
    """
    return [one for turn in _split_turns(rows) for one in _study_turn(turn, records, accepted)]


def _split_turns(rows: Sequence[R]) -> list[list[R]]:
    """Return the rows of each turn; a turn begins with the baseline's row."""
    turns: list[list[R]] = []
    for row in rows:
        if row.name == turn_label(rows[0].name, len(turns)):
            turns.append([])
        turns[-1].append(row)
    return turns


def _study_turn(rows: Sequence[BenchRow], records: Records, accepted: Mapping[str, float]) -> list[StudiedRow]:
    plain = records[rows[0].name]
    ranked = places({row.name: {clip: median_rate(runs) for clip, runs in records[row.name].items()} for row in rows})
    return [
        StudiedRow(
            **vars(row),
            place=ranked.get(row.name),
            noise=None if row is rows[0] else _noise(records[row.name], plain),
            model=predicted_speedup(_runs(records[row.name]), _runs(plain)),
            accepted_by_target=accepted.get(row.name),
        )
        for row in rows
    ]


def _noise(by_clip: Mapping[str, Sequence[Caption]], plain: Mapping[str, Sequence[Caption]]) -> tuple[str, ...] | None:
    """Return the names of speed-ups that are within noise; None with too few clips."""
    ratios = zip(*(speed_ups(runs, plain[clip]) for clip, runs in by_clip.items()), strict=True)
    verdicts = dict(zip(("first", "decode", "end_to_end"), map(is_significant, ratios), strict=True))
    if None in verdicts.values():
        return None
    return tuple(name for name, significant in verdicts.items() if not significant)


def _runs(by_clip: Mapping[str, Sequence[Caption]]) -> list[Caption]:
    return [one for runs in by_clip.values() for one in runs]


def predicted_speedup(runs: Sequence[Caption], plain: Sequence[Caption]) -> float | None:
    """Return the decode speed-up of the speed model over plain decoding; None for methods it does not describe.

    T_p(1) is the median pass of ``plain``; T_p of a window, T_q and the accepted lengths are those of ``runs``.
    Sequential: (tau + 1) T_p(1) / (passes T_q + T_p(window) + the draft's reading over the number of windows).
    Parallel: the renewal formula with beta = M / (1 + M) of the run length M and the mean window.

    Args:
        runs, plain: records of one method and of plain decoding, with their traces.
    """
    singles = _spans(plain, "verify")
    drafts, windows = _spans(runs, "draft"), _spans(runs, "verify")
    counters = [run.counters for run in runs if run.counters.get("drafted")]
    if not (singles and drafts and windows and counters):
        return None
    tp1, tp = median(singles), median(windows)
    passes = sum(one["target_forwards"] for one in counters)
    if any(run.schedule.get("kind") == "parallel" for run in runs):
        corrections = sum(one["corrections"] + 1 for one in counters)
        beta = speed.beta_of_run_length(sum(one["accepted"] for one in counters) / corrections)
        gamma = max(1, round(mean(run.schedule["gamma"] or 1 for run in runs)))
        return speed.parallel(beta, gamma, tp1, tp, median(drafts))
    # In the sequential schedule a draft span is a whole window.
    tokens = sum(one["emitted"] - 1 for one in counters) / passes
    reading = sum(run.timings.get("draft_reading", 0.0) for run in runs if run.counters.get("drafted"))
    return speed.sequential(tokens, 1, tp1, tp, median(drafts), overhead=reading / passes)


def _spans(runs: Sequence[Caption], kind: str) -> list[float]:
    return [
        span.end - span.start for run in runs if run.trace is not None for span in run.trace.spans if span.kind == kind
    ]


def markdown(rows: Sequence[StudiedRow]) -> str:
    """Return one table for each turn; speed-ups within noise are marked ``ns`` (not significant)."""
    tables = []
    for turn in _split_turns(rows):
        judged = any(row.accepted_by_target is not None for row in turn)
        header = [heading(row.also for row in turn), "place", "first token", "decode", "end to end"]
        lines = [
            [
                row.names,
                cell(row.place, "d"),
                spread(row.first) + row.mark("first"),
                spread(row.decode) + row.mark("decode"),
                spread(row.end_to_end) + row.mark("end_to_end"),
                cell(row.model),
                *[cell(row.accepted_by_target, ".1%")] * judged,
            ]
            for row in turn
        ]
        drawn = table([*header, "speed model", *["accepted by target"] * judged], lines)
        noise = f"ns: within noise of {turn[0].name} (95% interval of a paired bootstrap over clips)."
        tables.append(f"{drawn}\n\n{noise}" if any(row.noise for row in turn) else drawn)
    return "\n\n".join(tables)
