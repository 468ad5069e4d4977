"""The table and the frontier, on results made by hand."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from research.pareto.outcome import beaten_by_draft, frontier, markdown, outcome
from tests.research.pareto.test_quality import ONE, RIGHT, WRONG
from vidspec.errors import OutputError


def record(contender, clip, text=RIGHT, *, seconds=None, repeat=0, ids=(1, 2, 3), **more):
    timings = {"time_to_first_token": 1.0, "decode": seconds, "end_to_end": 1.0 + seconds} if seconds else {}
    return {
        "contender": contender,
        "repeat": repeat,
        "path": clip,
        "caption": text,
        "token_ids": list(ids),
        "lossless": True,
        "timings": timings,
        **({} if seconds else {"quality_only": True}),
        **more,
    }


def results(*records, truth=("a", "b", "c"), profiles=("ar", "sd", "loose", "pruned", "draft")):
    return {
        "settings": {"profiles": dict.fromkeys(profiles, "x"), "truth": {clip: asdict(ONE) for clip in truth}},
        "machine": {"cores": 2},
        "records": list(records),
    }


def everything():
    lossy = {"lossless": False, "loose": None}
    loose = {"lossless": False, "loose": {"share": 0.25, "tokens": []}}
    made = []
    for clip in "ab":
        for repeat in range(2):
            made += [
                record("ar", clip, seconds=4.0, repeat=repeat),
                record("sd", clip, seconds=2.0, repeat=repeat),
                record("loose", clip, WRONG, seconds=1.0, repeat=repeat, **loose),
                record("pruned", clip, WRONG, seconds=2.0, repeat=repeat, **lossy, accepted_by_target=0.5),
                record("draft", clip, WRONG, seconds=3.0, repeat=repeat),
            ]
    made += [record("ar", "c"), record("sd", "c"), record("loose", "c", **loose), record("draft", "c", WRONG)]
    return results(*made)


def test_tokens_that_are_drawn_otherwise_are_not_counted():
    found = everything()
    found["settings"]["by_other_draws"] = ["sd"]
    shown = outcome(found)
    assert [one.quality.identical for one in shown.methods][:2] == [1.0, None]
    assert "| in distribution |" in next(line for line in markdown(shown).splitlines() if line.startswith("| sd |"))


def test_names_of_one_method_are_one_row():
    found = everything()
    found["settings"]["also"] = {"sd": ["speculative"]}
    shown = markdown(outcome(found))
    assert shown.startswith("| method (= its other names: measured once) | kind |")
    assert sum(line.startswith("| sd = speculative | lossless |") for line in shown.splitlines()) == 1


def test_methods():
    found = outcome(everything())
    rows = {one.name: one for one in found.methods}
    assert [one.name for one in found.methods] == ["ar", "sd", "loose", "pruned", "draft"]
    assert [one.kind for one in found.methods] == ["lossless", "lossless", "loose", "lossy", "draft alone"]
    assert [one.speed.decode.value for one in found.methods] == [1, 2, 4, 2, 4 / 3]
    assert [one.speed.end_to_end.value for one in found.methods] == [1, 5 / 3, 5 / 2, 5 / 3, 5 / 4]
    assert rows["loose"].speed.first.value == 1.0 and rows["loose"].quality.loose == 0.25
    assert [one.quality.clips for one in found.methods] == [3, 3, 3, 2, 3]
    assert rows["loose"].quality.recall.value == (6 + 6 + 9) / 27
    assert rows["pruned"].quality.retention.value == 2 * 6 / (8 + 9)
    assert rows["pruned"].accepted_by_target == 0.5 and rows["loose"].accepted_by_target is None
    assert {one.name for one in found.methods if one.frontier} == {"sd", "loose"}
    assert all(one.worth == one.quality.retention != one.quality.rouge_l for one in found.methods[2:])
    assert found.worth == "retention" and found.baseline == "ar"


def test_the_draft_alone_is_a_reference():
    one = everything()
    for stored in one["records"]:
        if stored["contender"] == "draft" and stored["timings"]:
            stored["timings"] = {"time_to_first_token": 1.0, "decode": 0.1, "end_to_end": 1.1}
    found = outcome(one)
    assert {method.name for method in found.methods if method.frontier} == {"sd", "loose"}
    assert beaten_by_draft(found) == ["pruned"]  # as good, and slower; loose is better on clip c
    assert "The draft alone is at least as fast and as good as pruned." in markdown(found)
    assert beaten_by_draft(outcome(everything())) == []
    assert beaten_by_draft(outcome(results(record("ar", "a", seconds=1.0)))) == []


def test_times_of_what_was_made_for_quality_never_count():
    busy = {"time_to_first_token": 9.0, "decode": 99.0, "end_to_end": 108.0}
    one = everything()
    one["records"].append(record("pruned", "c"))
    for stored in one["records"]:
        if stored.get("quality_only"):
            stored["timings"] = busy
    speeds = [method.speed for method in outcome(one).methods]
    assert speeds == [method.speed for method in outcome(everything()).methods] and speeds[0].clips == 2


def test_all_are_held_to_the_same_clips():
    one = results(
        *(record(name, "a", seconds=2.0) for name in ("ar", "sd", "loose")),
        record("ar", "b", seconds=2.0),
        record("sd", "b", seconds=1.0),  # the run was stopped here
        record("pruned", "a"),
    )
    speeds = {method.name: method.speed for method in outcome(one).methods}
    assert speeds["sd"].clips == 1 and speeds["sd"].decode.value == 1.0
    assert speeds["pruned"] is None and "draft" not in speeds


def test_metric_a_is_pooled_over_tokens():
    one = results(
        record("ar", "a"),
        record("ar", "b"),
        record("loose", "a", ids=[1, 2], accepted_by_target=0.5),
        record("loose", "b", ids=[1] * 8, accepted_by_target=1.0),
    )
    assert outcome(one).methods[1].accepted_by_target == pytest.approx(9 / 10)


def test_without_truth_likeness_decides():
    one = everything()
    one["settings"]["truth"] = {}
    found = outcome(one)
    assert found.worth == "ROUGE-L" and found.methods[0].quality.f1 is None
    assert [method.worth == method.quality.rouge_l for method in found.methods] == [True] * 5
    assert "The truth of no clip is known" in markdown(found)


def test_table():
    lines = markdown(outcome(everything())).splitlines()
    heads, rows = lines[0].split(" | "), {line.split(" | ")[0]: line.split(" | ") for line in lines[2:7]}
    assert all(len(row) == len(heads) for row in rows.values())
    loose = dict(zip(heads, rows["| loose"], strict=True))
    assert (loose["kind"], loose["loose tokens"], loose["decode"]) == ("loose", "25.0%", "4.00x (4.00-4.00)")
    assert loose["retention"].startswith(f"{outcome(everything()).methods[2].quality.retention.value:.3f} (")
    assert (loose["frontier |"], loose["accepted by target"], loose["clips"]) == ("yes |", "-", "3")
    assert dict(zip(heads, rows["| ar"], strict=True))["retention"] == "1.000 (1.000-1.000)"
    assert any("medians over 2 clips" in line for line in lines)
    untimed = markdown(outcome(results(record("ar", "a"), record("sd", "a"))))
    assert "No times" in untimed and "| sd | lossless | 1 | - | - | 3.0 | - | - | - | 1.000" in untimed


def test_mean_tokens_are_of_the_texts_of_each_method():
    shown = markdown(
        outcome(results(record("ar", "a"), record("ar", "b"), record("sd", "a", ids=[1] * 4), record("sd", "b")))
    )
    heads, *rows = (line.split(" | ") for line in shown.splitlines() if line.startswith("| "))
    assert [row[heads.index("mean tokens")] for row in rows] == ["3.0", "3.5"]


def test_results_without_the_baseline():
    with pytest.raises(OutputError, match="no record of the baseline"):
        outcome(results(record("sd", "a")))
    with pytest.raises(OutputError, match="no record of the baseline"):
        outcome({"records": []})


@pytest.mark.parametrize(
    "points, expected",
    [
        ([(1.0, 1.0), (2.0, 0.9), (1.5, 0.8), (3.0, 0.5)], {0, 1, 3}),
        ([(1.0, 1.0), (1.5, 1.0), (1.5, 0.9)], {1}),
        ([(2.0, 0.9), (2.0, 0.9)], {0, 1}),
        ([(1.0, 1.0), None, (0.5, 1.01)], {0, 2}),
        ([], set()),
    ],
)
def test_frontier(points, expected):
    assert frontier(points) == expected
