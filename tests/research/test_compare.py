"""Changes are told from noise: none is found between two draws of one distribution, a real one is."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from research.compare import MIN_CLIPS, compare, interval, markdown
from vidspec.errors import OutputError


def results(seed, factor=1.0, clips=30, machine=None, busy=1.0, ids=(1, 2, 3)):
    """Two methods; ``factor`` slows sd's decoding alone, ``busy`` everything of the run."""
    rng, found = np.random.default_rng(seed), []
    lengths = np.random.default_rng(0).uniform(0.5, 5, clips)
    for name in ("ar", "sd"):
        for clip in range(clips):
            for repeat in range(2):
                noise = busy * lengths[clip] * rng.lognormal(0, 0.05)
                decode = noise * (factor if name == "sd" else 1.0)
                timings = {"time_to_first_token": noise, "decode": decode, "end_to_end": noise + decode}
                one = {"contender": name, "repeat": repeat, "path": f"{clip}.mp4", "caption": "x"}
                found.append({**one, "token_ids": list(ids), "timings": timings})
    return {"records": found, "machine": machine or {"cores": 2}}


def verdicts(compared, against="time"):
    return {(one.method, one.what): one.verdict for one in compared.changes if one.against == against}


def test_noise_is_no_change():
    found = compare(results(1), results(2))
    assert set(verdicts(found).values()) == set(verdicts(found, "baseline").values()) == {"no change"}
    assert found.other_tokens == {"ar": 0, "sd": 0}


def test_a_real_change_is_found_in_the_method_and_the_time_that_changed():
    found = compare(results(1), results(2, factor=1.1))
    assert verdicts(found)["sd", "decode"] == "slower" and verdicts(found)["sd", "time to first token"] == "no change"
    assert verdicts(found)["ar", "decode"] == "no change"
    (one,) = [c for c in found.changes if (c.method, c.what, c.against) == ("sd", "decode", "time")]
    assert one.low < one.ratio < one.high and one.ratio == pytest.approx(1.1, abs=0.04)
    assert verdicts(compare(results(2, factor=1.1), results(1)))["sd", "decode"] == "faster"


def test_a_busy_machine_does_not_move_the_ratio_to_the_baseline():
    found = compare(results(1), results(2, busy=1.5))
    assert verdicts(found)["sd", "decode"] == "slower"
    assert verdicts(found, "baseline") == {
        ("sd", what): "no change" for what in ("time to first token", "decode", "end to end")
    }


def test_records_made_for_quality_have_no_times():
    before, after = results(1), results(2)
    for one in results(3, factor=2.0)["records"]:
        after["records"].append({**one, "timings": {}})
        after["records"].append({**one, "path": "other.mp4", "timings": {}})
    assert compare(before, after) == compare(before, results(2))


def test_too_few_clips_say_nothing():
    found = compare(results(1, clips=MIN_CLIPS - 1), results(2, factor=3, clips=MIN_CLIPS - 1))
    assert set(verdicts(found).values()) == {"too few clips"}


@pytest.mark.full
@pytest.mark.parametrize("clips", [MIN_CLIPS, 30])
def test_the_interval_is_wrong_about_as_often_as_it_says(clips):
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(600):
        low, high = interval(rng.normal(0, 0.1, clips), 0.95)
        wrong += not low < 1 < high
    assert 0.025 * 600 <= wrong <= 0.09 * 600


def test_a_single_clip_has_no_interval():
    assert interval(np.array([0.3]), 0.99) == (0.0, math.inf)


def test_other_tokens_and_other_machines_are_named():
    found = compare(results(1), results(1, ids=(1, 2), machine={"cores": 64}))
    text = markdown(found)
    assert found.other_tokens == {"ar": 30, "sd": 30} and "other tokens in B: ar on 30, sd on 30" in text
    assert "The machines differ: cores 2 and 64" in text
    assert "Paired bootstrap over clips" in text


def test_a_text_that_became_shorter_is_not_faster():
    """B writes half as many tokens in half the time of decoding."""
    before, after = results(1, ids=range(101)), results(1, ids=range(101))
    for one in after["records"]:
        if one["contender"] == "sd":
            times, one["token_ids"] = one["timings"], list(range(51))
            one["timings"] = {**times, "decode": times["decode"] / 2, "end_to_end": times["end_to_end"] * 0.75}
    found = compare(before, after)
    ratios = {(one.what, one.against): one.ratio for one in found.changes if one.method == "sd"}
    for against in ("time", "baseline"):
        assert ratios["decode", against] == pytest.approx(1.0) and ratios["end to end", against] == pytest.approx(1.0)
        assert ratios["end to end, raw", against] == pytest.approx(0.75)
    assert not [one for one in found.changes if one.method == "ar" and one.what == "end to end, raw"]
    assert found.tokens == {"ar": (101.0, 101.0), "sd": (101.0, 51.0)} == found.to_dict()["tokens"]
    assert "Mean tokens in A and B: ar 101.0 and 101.0, sd 101.0 and 51.0" in markdown(found)
    assert "Mean tokens" not in markdown(compare(before, before))


def test_a_method_that_writes_less_than_the_baseline_is_held_at_the_baselines_length():
    before, after = results(1, ids=range(101)), results(1, factor=2.0, ids=range(101))
    for one in before["records"] + after["records"]:
        if one["contender"] == "sd":
            one["token_ids"] = list(range(51))
    changes = compare(before, after).changes
    (one,) = [c for c in changes if (c.method, c.what, c.against) == ("sd", "end to end", "time")]
    assert one.ratio == pytest.approx((1 + 2 * 2) / (1 + 2 * 1), abs=0.04)  # 0.02 and 0.04 of a second a token


def test_files_without_a_common_clip_are_refused():
    other = results(1)
    for one in other["records"]:
        one["path"] = "elsewhere/" + one["path"]
    with pytest.raises(OutputError, match="share no method on any clip"):
        compare(results(1), other)


@pytest.fixture
def stored(tmp_path):
    def write(name, seconds):
        timings = {"time_to_first_token": 1.0, "decode": seconds, "end_to_end": 1 + seconds}
        records = [
            {
                "contender": "ar",
                "repeat": 0,
                "path": f"{clip}.mp4",
                "caption": "x",
                "token_ids": [1, 2],
                "timings": timings,
            }
            for clip in range(9)
        ]
        (tmp_path / name).write_text(json.dumps({"machine": {}, "records": records}))
        return str(tmp_path / name)

    return write


def test_two_files_are_compared(command, stored):
    before, after = stored("a.json", 1.0), stored("b.json", 2.0)
    ran = command("compare", before, after, "--format", "json")
    rows = {row["what"]: row for row in json.loads(ran.out)["rows"]}
    assert ran.code == 0 and rows["decode"]["ratio"] == pytest.approx(2) and rows["decode"]["verdict"] == "slower"
    assert rows["time to first token"]["verdict"] == "no change"
    assert "| ar | decode | time | 2.000 | 2.000-2.000 | 9 | slower |" in command("compare", before, after).out


@pytest.mark.parametrize(
    "args, complaint",
    [
        (("no.json", "b.json"), "no.json: cannot be read: No such file"),
        (("a.json", "b.json", "--level", "1"), "--level must lie between 0.5 and 1, not 1"),
        (("a.json",), "Missing argument"),
    ],
)
def test_bad_input_ends_in_one_line(command, args, complaint):
    ran = command("compare", *args)
    assert ran.code in (1, 2, 3) and ran.out == ""
    assert ran.err.startswith("error: ") and complaint in ran.err and ran.err.count("\n") == 1
