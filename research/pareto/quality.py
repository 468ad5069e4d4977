"""Quality of a method's captions relative to plain decoding's: facts, retention, likeness. Reads records only.

Intervals are percentile bootstrap intervals over clips. Method and baseline are resampled together, so that hard clips
affect both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from research.compare import DRAWS, SEED, bootstrap_samples
from research.pareto.likeness import edit_distance, rouge_l
from research.world.scoring import Statement, score
from vidspec.events.compare import tau
from vidspec.events.record import Caption

LEVEL = 0.95

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A figure with its bootstrap interval."""

    value: float
    low: float
    high: float


_Facts = tuple[Estimate | None, Estimate | None, Estimate | None, Estimate | None]


@dataclass(frozen=True)
class Quality:
    """Quality of one method's captions relative to the baseline's.

    Attributes:
        clips: number of clips that both have captioned.
        with_truth: number of those with known facts.
        precision, recall, f1: of the facts stated, pooled over the clips with truth (micro average); None without any.
        retention: ``f1`` over the baseline's on the same clips; None without truth, or if the baseline states no true
            fact.
        rouge_l: mean ROUGE-L against the baseline's captions.
        edit_distance: mean token edit distance to them, over the longer length.
        identical: share of captions whose token ids are the baseline's; None if they are not compared.
        loose: share of loose tokens among all emitted ones; None for methods without a loose rule.
        tau: accepted draft tokens per verification, pooled; None if nothing was drafted.
        tokens: mean over the captions, including the end token.
    """

    clips: int
    with_truth: int
    precision: Estimate | None
    recall: Estimate | None
    f1: Estimate | None
    retention: Estimate | None
    rouge_l: Estimate
    edit_distance: Estimate
    identical: float | None
    loose: float | None
    tau: float | None
    tokens: float


def quality(
    captions: Mapping[str, Caption], baseline: Mapping[str, Caption], truth: Mapping[str, Statement]
) -> Quality | None:
    """Compare a method's captions with plain decoding's and the truth.

    Args:
        captions: the method's record of each clip.
        baseline: plain decoding's.
        truth: the facts of clips with known facts.

    Returns:
        figures over the clips that both have; None if there are none.
    """
    pairs = [(clip, captions[clip], baseline[clip]) for clip in captions if clip in baseline]
    if not pairs:
        return None
    known = [(truth[clip], ours, plain) for clip, ours, plain in pairs if clip in truth]
    facts: _Facts = (None, None, None, None)
    if known:
        facts = _facts(
            np.array([_counts(ours, real) for real, ours, _ in known]),
            np.array([_counts(plain, real) for real, _, plain in known]),
        )
    return Quality(
        len(pairs),
        len(known),
        *facts,
        rouge_l=mean([rouge_l(ours.caption or "", plain.caption or "") for _, ours, plain in pairs]),
        edit_distance=mean([edit_distance(ours.token_ids, plain.token_ids) for _, ours, plain in pairs]),
        identical=sum(ours.token_ids == plain.token_ids for _, ours, plain in pairs) / len(pairs),
        loose=_loose([ours for _, ours, _ in pairs]),
        tau=tau([length for _, ours, _ in pairs for length in ours.counters.get("accepted_lengths", ())]),
        tokens=fmean(len(ours.token_ids) for _, ours, _ in pairs),
    )


def mean(values: list[float]) -> Estimate:
    """Return the mean over clips, at least one."""
    column = np.array(values)
    return _estimate(float(column.mean()), _times_drawn(len(values)) @ column / len(values))


def median(values: list[float]) -> Estimate:
    """Return the median over clips, at least one."""
    column = np.array(values)
    return _estimate(float(np.median(column)), np.median(bootstrap_samples(column), axis=1))


def _counts(caption: Caption, real: Statement) -> tuple[int, int, int]:
    """Return the numbers of facts matched, stated, true."""
    found = score(caption.caption or "", real)
    return found.matched, found.stated, found.true


def _facts(ours: NDArray[np.int64], plain: NDArray[np.int64]) -> _Facts:
    """Return precision, recall, F1 and retention from (clips, 3) counts: matched, stated, true."""
    drawn = _times_drawn(len(ours))
    pooled, pooled_plain = ours.sum(axis=0, dtype=float), plain.sum(axis=0, dtype=float)
    draws, draws_plain = drawn @ ours, drawn @ plain
    retention = None
    if pooled_plain[0]:
        retention = _estimate(
            float(_f1(pooled) / _f1(pooled_plain)), _over(_f1(draws), _f1(draws_plain), undefined=np.nan)
        )
    return (
        _estimate(float(_over(pooled[0], pooled[1])), _over(draws[:, 0], draws[:, 1])),
        _estimate(float(_over(pooled[0], pooled[2])), _over(draws[:, 0], draws[:, 2])),
        _estimate(float(_f1(pooled)), _f1(draws)),
        retention,
    )


def _f1(counts: Floats) -> Floats:
    return _over(2 * counts[..., 0], counts[..., 1] + counts[..., 2])


def _over(numerator: Floats, denominator: Floats, undefined: float = 0.0) -> Floats:
    """Return a ratio, ``undefined`` for a zero denominator."""
    there = denominator > 0
    return np.where(there, numerator / np.where(there, denominator, 1.0), undefined)


def _estimate(value: float, draws: Floats) -> Estimate:
    low, high = np.nanquantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high))


@lru_cache(maxsize=2)
def _times_drawn(clips: int) -> Floats:
    """Return (draws, clips) counts of each clip in each bootstrap sample, the same for every call of ``clips``."""
    rng = np.random.default_rng(SEED)
    return rng.multinomial(clips, np.full(clips, 1 / clips), size=DRAWS).astype(np.float64)


def _loose(captions: list[Caption]) -> float | None:
    loose = [(one.loose["share"], len(one.token_ids)) for one in captions if one.loose is not None]
    tokens = sum(length for _, length in loose)
    return sum(share * length for share, length in loose) / tokens if tokens else None
