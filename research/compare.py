"""Separates differences from noise by a bootstrap over clips: between two runs, and between methods of one run.

``python -m research.compare A.json B.json`` compares two results of ``vidspec bench --json``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist, fmean, median
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from research.commands import TableFormat, run
from vidspec.bench.results import StoredRun, read_results, restore_caption
from vidspec.bench.tables import bullets, table
from vidspec.cli.printed import print_json
from vidspec.errors import OutputError, UsageError
from vidspec.events.compare import decode_rate, time_at_length
from vidspec.events.record import Caption

#: Fewest clips for a bootstrap.
MIN_CLIPS = 8
DRAWS, SEED = 10_000, 0
#: Confidence level of the intervals that decide if two methods share a place.
PLACES_LEVEL = 0.95
TIMES = ("time to first token", "decode", "end to end")
RAW = "end to end, raw"


@dataclass(frozen=True)
class TimeChange:
    """Change of one time of one method.

    Attributes:
        method: name of the contender.
        what: ``time to first token``, ``decode`` (time per token), ``end to end`` of texts of one length (the
            baseline's in A, or the method's own in A without one; :func:`~vidspec.events.compare.time_at_length`) or,
            if texts differ in length, ``end to end, raw`` of the texts as they are.
        against: ``time`` for seconds, ``baseline`` for seconds over the baseline's of the same run, which cancels the
            load of a machine that was busier during one of the runs.
        ratio, low, high: B / A, geometric mean over clips and its interval; below 1 is faster.
        clips: number of clips in both runs.
        verdict: ``faster``, ``slower``, ``no change`` or ``too few clips``.
    """

    method: str
    what: str
    against: str
    ratio: float
    low: float
    high: float
    clips: int
    verdict: str


@dataclass(frozen=True)
class RunComparison:
    """Changes between two runs, A and B.

    ``other_tokens``: by method, clips whose token ids differ. ``tokens``: mean tokens of a text in A and B by method.
    ``notes``: caveats.
    """

    changes: tuple[TimeChange, ...]
    other_tokens: dict[str, int]
    tokens: dict[str, tuple[float, float]]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return {
            "rows": [asdict(one) for one in self.changes],
            "other_tokens": self.other_tokens,
            "tokens": self.tokens,
            "notes": list(self.notes),
        }


def compare(before: StoredRun, after: StoredRun, *, level: float = 0.99) -> RunComparison:
    """Compare the results B (``after``) with A (``before``), as read by ``read_results``.

    A clip's value is the median over its repeats. The clips' log ratios are resampled with replacement 10,000 times,
    with a fixed seed; see :func:`interval`.

    Raises:
        OutputError: they share no method on any clip.
    """
    left, right = _by_method(before), _by_method(after)
    shared = [name for name in left if name in right]
    changes: list[TimeChange] = []
    differing: dict[str, int] = {}
    tokens: dict[str, tuple[float, float]] = {}
    first = next(iter(left), "")
    for name in shared:
        clips = [clip for clip in left[name] if clip in right[name]]
        if not clips:
            continue
        lengths = {clip: _length(left[first if clip in left[first] else name][clip]) for clip in clips}
        own = [{clip: _length(runs[name][clip]) for clip in clips} for runs in (left, right)]
        tokens[name] = fmean(own[0].values()), fmean(own[1].values())
        differing[name] = sum(left[name][clip][0].token_ids != right[name][clip][0].token_ids for clip in clips)
        for what in (*TIMES, *([] if own == [lengths, lengths] else [RAW])):
            logs = _logs(left[name], right[name], clips, what, lengths)
            changes.append(_change(name, what, "time", logs, level))
            if name == first or first not in right:
                continue
            plain = [clip in left[first] and clip in right[first] for clip in clips]
            both = [clip for clip, there in zip(clips, plain, strict=True) if there]
            if both:
                of_first = _logs(left[first], right[first], both, what, lengths)
                relative = _logs(left[name], right[name], both, what, lengths) - of_first
                changes.append(_change(name, what, "baseline", relative, level))
    if not changes:
        raise OutputError("the two files share no method on any clip")
    return RunComparison(tuple(changes), differing, tokens, _notes(before, after, level, len(changes)))


def interval(logs: NDArray[np.float64], level: float) -> tuple[float, float]:
    """Return the bootstrap interval of the geometric mean of ratios, given their logarithms (n,), n >= 2.

    The percentile interval, expanded for small n: its quantiles are those at which it agrees with Student's t for
    normal data (Hesterberg 2015, What Teachers Should Know About the Bootstrap, 4.3). A single value has no interval:
    (0, inf).
    """
    n = len(logs)
    if n < 2:
        return 0.0, math.inf
    means = bootstrap_samples(logs).mean(axis=1)
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * _student((1 + level) / 2, n - 1))
    low, high = np.quantile(means, [tail, 1 - tail])
    return math.exp(low), math.exp(high)


def bootstrap_samples(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (draws, n) bootstrap samples of (n,) values, the same for every call."""
    return values[np.random.default_rng(SEED).integers(0, len(values), size=(DRAWS, len(values)))]


def _student(share: float, freedom: int) -> float:
    """Return a quantile of Student's t, by the expansion of Cornish and Fisher (Abramowitz and Stegun 26.7.5)."""
    z, v = NormalDist().inv_cdf(share), freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def _change(name: str, what: str, against: str, logs: NDArray[np.float64], level: float) -> TimeChange:
    low, high = interval(logs, level)
    verdict = "faster" if high < 1 else "slower" if low > 1 else "no change"
    if len(logs) < MIN_CLIPS:
        verdict = "too few clips"
    return TimeChange(name, what, against, math.exp(float(logs.mean())), low, high, len(logs), verdict)


def _logs(
    left: Mapping[str, Sequence[Caption]],
    right: Mapping[str, Sequence[Caption]],
    clips: Sequence[str],
    what: str,
    lengths: Mapping[str, int],
) -> NDArray[np.float64]:
    """Return log(B / A) of a time, clip by clip; end to end for ``lengths`` tokens."""
    ratios = [_seconds(right[clip], what, lengths[clip]) / _seconds(left[clip], what, lengths[clip]) for clip in clips]
    return np.log(ratios)


def _seconds(runs: Sequence[Caption], what: str, tokens: int) -> float:
    if what == "decode":
        return median(1 / (decode_rate(run) or math.inf) or math.ulp(1.0) for run in runs)
    if what == "end to end":  # a text of one token has no rate and counts as it is
        return median(time_at_length(run, tokens) or run.timings["end_to_end"] for run in runs)
    return median(run.timings["time_to_first_token" if what == "time to first token" else "end_to_end"] for run in runs)


def _length(runs: Sequence[Caption]) -> int:
    return len(runs[0].token_ids)


def _by_method(results: StoredRun) -> dict[str, dict[str, list[Caption]]]:
    found: dict[str, dict[str, list[Caption]]] = {}
    for one in results["records"]:
        if one["timings"]:  # others were made for their texts alone
            found.setdefault(one["contender"], {}).setdefault(one["path"], []).append(restore_caption(one))
    return found


def _notes(before: StoredRun, after: StoredRun, level: float, tests: int) -> tuple[str, ...]:
    notes = [
        f"Paired bootstrap over clips: {level:.0%} intervals of the geometric mean of B / A, {DRAWS} draws, medians "
        "over repeats. A change is real where the interval leaves out 1.",
        f"{tests} intervals are shown; by chance alone about {tests * (1 - level):.1f} of them leave out 1.",
        "against baseline: times over plain decoding's in the same run; a machine that was busier during one run moves "
        "the times of that run alike, and hardly these.",
    ]
    old, new = before.get("machine", {}), after.get("machine", {})
    steady = [
        key
        for key in old
        if key not in ("copy_GB_per_s", "target_pass_MB", "target_entry_bytes") and old[key] != new.get(key)
    ]
    if steady:
        notes.append("The machines differ: " + "; ".join(f"{key} {old[key]} and {new.get(key)}" for key in steady))
    return tuple(notes)


def markdown(compared: RunComparison) -> str:
    """Return a table of all changes, and the notes."""
    lines = [
        (
            one.method,
            one.what,
            one.against,
            f"{one.ratio:.3f}",
            f"{one.low:.3f}-{one.high:.3f}",
            str(one.clips),
            one.verdict,
        )
        for one in compared.changes
    ]
    whole = table(("method", "time", "against", "B / A", "interval", "clips", "verdict"), lines)
    other = [f"{name} on {clips}" for name, clips in compared.other_tokens.items() if clips]
    means = [f"{name} {a:.1f} and {b:.1f}" for name, (a, b) in compared.tokens.items()]
    notes = [*compared.notes, *(["Clips with other tokens in B: " + ", ".join(other)] if other else [])]
    if any(one.what == RAW for one in compared.changes):
        lengths = f"Mean tokens in A and B: {', '.join(means)}"
        notes.append(f"Texts differ in length: end to end is at that of A's baseline. {lengths}")
    return f"{whole}\n{bullets(notes)}"


def is_different(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Return True if two methods' rates by clip differ by more than their variation.

    The ratios on the clips that both have must lie on one side of 1: their bootstrap interval or, with fewer than
    :data:`MIN_CLIPS` clips, all of at least two ratios.
    """
    logs = np.array([math.log(one[clip] / other[clip]) for clip in one if other.get(clip) and one[clip]])
    if len(logs) < 2:
        return False
    if len(logs) < MIN_CLIPS:
        return bool(logs.min() > 0 or logs.max() < 0)
    return _excludes_one(logs)


def is_significant(ratios: Sequence[float]) -> bool | None:
    """Return True if ratios by clip differ from 1 by more than noise: the 95% bootstrap interval of their mean.

    None with fewer than :data:`MIN_CLIPS` clips. Clips without a ratio (0 or infinite) do not count.
    """
    known = [ratio for ratio in ratios if 0 < ratio < math.inf]
    return None if len(known) < MIN_CLIPS else _excludes_one(np.log(known))


def _excludes_one(logs: NDArray[np.float64]) -> bool:
    low, high = interval(logs, PLACES_LEVEL)
    return not low <= 1 <= high


def places(rates: Mapping[str, Mapping[str, float]]) -> dict[str, int]:
    """Return the rank of each method, 1 the fastest, by its rate (higher is faster) on each clip.

    In the order of geometric means, a method shares the rank of the one before unless it differs from the first with
    that rank; the next rank counts all before it. Empty with fewer than two clips, which show no difference.
    """
    if max(map(len, rates.values()), default=0) < 2:
        return {}
    order = sorted(rates, key=lambda name: (-_mean(rates[name]), name))
    found: dict[str, int] = {}
    first = ""
    for number, name in enumerate(order, 1):
        if not found or is_different(rates[first], rates[name]):
            first = name
            found[name] = number
        else:
            found[name] = found[first]
    return found


def _mean(rates: Mapping[str, float]) -> float:
    """Return the geometric mean; 0 without values, or with a clip without a rate."""
    if not rates or min(rates.values()) <= 0:
        return 0.0
    return math.exp(sum(map(math.log, rates.values())) / len(rates))


def command(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="Results of `vidspec bench --json`.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="Results to compare with A.")],
    level: Annotated[
        float, typer.Option("--level", help="Confidence level of the intervals; 0.99 is wrong once in a hundred.")
    ] = 0.99,
    form: Annotated[TableFormat, typer.Option("--format", help="json: one object with rows and notes.")] = "markdown",
) -> int:
    """Separate real changes between two runs from noise, by a paired bootstrap over clips.

    For every method and time it prints the geometric mean over clips of B / A with its interval. A change is real if
    the interval excludes 1.
    """
    if not 0.5 <= level < 1:
        raise UsageError(f"--level must lie between 0.5 and 1, not {level:g}")
    compared = compare(read_results(before), read_results(after), level=level)
    if form == "json":
        print_json(compared.to_dict())
    else:
        print(markdown(compared))
    return 0


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "compare", args)


if __name__ == "__main__":
    sys.exit(main())
