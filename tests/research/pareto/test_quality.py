"""Facts, retention and their intervals, on captions whose figures are known."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from research.pareto.quality import mean, median, quality
from research.world.scoring import truth
from tests.research.world.scenes import scene, thing
from vidspec.events.record import Caption

ONE = truth(scene(thing("red", "circle", "large", "right", (0, 1), (2, 1)), background="navy", pattern="striped"))
RIGHT = (
    "The video shows one object on a striped navy background. The object is a large red circle at the left. "
    "It moves to the right and ends up at the right. By the end of the video, the red circle is at the right."
)
#: A caption that states eight of nine facts, two of them wrong.
WRONG = RIGHT.replace("navy", "teal").replace("large", "small").replace("It moves to the right and ends up", "It is")


def records(*texts, ids=None, loose=None, counters=None):
    return {
        f"{number}.mp4": Caption(
            f"{number}.mp4",
            text,
            token_ids=list(ids or [1, 2, 3, 4]),
            loose=None if loose is None else {"share": loose, "tokens": []},
            counters=counters or {},
        )
        for number, text in enumerate(texts)
    }


def facts(count):
    return {f"{number}.mp4": ONE for number in range(count)}


def test_facts_pooled_over_clips():
    found = quality(records(RIGHT, WRONG, ""), records(RIGHT, RIGHT, WRONG), facts(3))
    assert found.clips == found.with_truth == 3
    assert found.precision.value == (9 + 6 + 0) / (9 + 8 + 0)
    assert found.recall.value == (9 + 6 + 0) / 27
    assert found.f1.value == 2 * 15 / (17 + 27)
    assert found.retention.value == pytest.approx((2 * 15 / (17 + 27)) / (2 * (9 + 9 + 6) / (9 + 9 + 8 + 27)))


def test_intervals_of_precision_and_recall():
    texts = [RIGHT, "The video shows one object."] * 10  # right about all nine facts, and about the one it states
    found = quality(records(*texts), records(*texts), facts(20))
    assert (found.precision.low, found.precision.high) == (1.0, 1.0)
    assert found.recall.value == pytest.approx(5 / 9)
    assert found.recall.low < found.recall.value < found.recall.high < 1


def test_interval_of_retention_is_that_of_clips_drawn_together():
    rng = random.Random(3)
    ours = records(*(rng.choice((RIGHT, WRONG)) for _ in range(20)))
    plain = records(*(rng.choice((RIGHT, WRONG)) for _ in range(20)))
    found = quality(ours, plain, facts(20)).retention

    def f1(captions, clips):
        hits = [(9, 9, 9) if captions[clip].caption == RIGHT else (6, 8, 9) for clip in clips]
        matched, stated, true = (sum(column) for column in zip(*hits, strict=True))
        return 2 * matched / (stated + true)

    draws = []
    for _ in range(4000):
        clips = rng.choices(list(ours), k=20)
        draws.append(f1(ours, clips) / f1(plain, clips))
    low, high = np.quantile(draws, [0.025, 0.975])
    assert found.low == pytest.approx(low, abs=0.01) and found.high == pytest.approx(high, abs=0.01)
    assert found.low < found.value < found.high


def test_identical_captions_retain_everything_without_doubt():
    texts = (RIGHT, WRONG, "", RIGHT, WRONG)
    found = quality(records(*texts), records(*texts), facts(5))
    assert (found.retention.value, found.retention.low, found.retention.high) == (1.0, 1.0, 1.0)
    assert found.f1.low < found.f1.value < found.f1.high
    assert (found.rouge_l.value, found.edit_distance.value, found.identical) == (1.0, 0.0, 1.0)


def test_more_clips_narrow_the_intervals():
    def width(clips):
        texts = [RIGHT, WRONG] * (clips // 2)
        found = quality(records(*texts), records(*[RIGHT] * clips), facts(clips))
        assert found.retention.low < found.retention.value < found.retention.high
        return found.retention.high - found.retention.low

    assert width(160) == pytest.approx(width(40) / 2, rel=0.1)


def test_without_truth_there_is_likeness_alone():
    plain = records(RIGHT, RIGHT)
    ours = {**plain, "1.mp4": Caption("1.mp4", WRONG, token_ids=[1, 2, 9, 4])}
    found = quality(ours, plain, {})
    assert (found.precision, found.recall, found.f1, found.retention, found.with_truth) == (None,) * 4 + (0,)
    assert found.rouge_l.value < 1 and found.edit_distance.value == 0.25 / 2 and found.identical == 0.5
    partly = quality(ours, plain, {"1.mp4": ONE})
    assert partly.clips == 2 and partly.with_truth == 1 and partly.recall.value == 6 / 9


def test_only_clips_that_both_have_count():
    ours, plain = records(RIGHT, WRONG, WRONG), records(RIGHT)
    assert quality(ours, plain, facts(3)).clips == 1 and quality(ours, plain, facts(3)).f1.value == 1.0
    assert quality({}, plain, facts(1)) is None


def test_baseline_without_facts_leaves_no_retention():
    found = quality(records(RIGHT), records(""), facts(1))
    assert found.retention is None and found.f1.value == 1.0


def test_loose_tokens_and_tau_are_pooled():
    short = records(RIGHT, ids=[1, 2], loose=0.5, counters={"drafted": 4, "accepted": 4, "accepted_lengths": [3]})
    long = records(
        "", RIGHT, ids=[1] * 8, loose=0.0, counters={"drafted": 9, "accepted": 3, "accepted_lengths": [1] * 3}
    )
    found = quality({"0.mp4": short["0.mp4"], "1.mp4": long["1.mp4"]}, records(RIGHT, RIGHT), {})
    assert found.loose == pytest.approx((0.5 * 2 + 0.0 * 8) / 10)
    assert found.tau == 6 / 4
    plain = quality(records(RIGHT), records(RIGHT), {})
    assert plain.loose is None and plain.tau is None


def test_intervals_of_mean_and_median():
    values = [float(value) for value in range(1, 101)]
    found = mean(values)
    assert found.value == 50.5
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.std(values) / math.sqrt(100), rel=0.05)
    assert median([1.0, 1.0, 1.0, 50.0]).value == 1.0
    middle = median(values)
    assert middle.low < 50.5 == middle.value < middle.high and mean(values) == found
    assert median([2.0]) == mean([2.0])
