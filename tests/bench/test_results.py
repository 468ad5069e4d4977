"""The results file: whole after every record, continued by the same settings, never overwritten by others."""

from __future__ import annotations

import json
from functools import partial

import pytest

from vidspec.bench.results import ResultsFile, read_results
from vidspec.bench.rows import bench_rows
from vidspec.bench.turns import measure_in_turns
from vidspec.errors import OutputError, UsageError
from vidspec.events.record import Caption
from vidspec.events.trace import Span, Trace

SETTINGS = {"profiles": {"ar": "1"}, "clips": [["a.mp4", 3]]}


def record(clip="a.mp4", seconds=1.0):
    spans = [Span("target", "verify", 2.0, 2.5), Span("draft", "draft", 0.0, 0.125), Span("target", "accept", 0.0, 9.0)]
    timings = {"time_to_first_token": 1.0, "decode": seconds, "end_to_end": 1.0 + seconds}
    return Caption(clip, "x", token_ids=[1, 2, 3], profile="ar", timings=timings, trace=Trace(spans=spans))


def test_the_file_is_whole_after_every_record(tmp_path):
    file = tmp_path / "r.json"
    results = ResultsFile(file, SETTINGS, {"cores": 2})
    for repeat in range(3):
        assert len(json.loads(file.read_text())["records"]) == repeat
        results.add(("ar", "a.mp4", repeat), record())
    results.finish(rows=[{"name": "ar"}])
    content = json.loads(file.read_text())
    assert [one["repeat"] for one in content["records"]] == [0, 1, 2]
    assert content["rows"] == [{"name": "ar"}] and content["machine"] == {"cores": 2}
    assert content["records"][0]["passes"] == {"verify": [0.5], "draft": [0.125]}


def test_further_entries_of_a_record_are_kept_and_may_be_changed(tmp_path):
    file = tmp_path / "r.json"
    results = ResultsFile(file, SETTINGS, {})
    results.add(("ar", "a.mp4", 0), record(), quality_only=True)
    results.stored[0]["accepted_by_target"] = 0.5
    results.rewrite()
    results.add(("ar", "a.mp4", 1), record())
    again = ResultsFile(file, SETTINGS, {})
    assert [one.get("quality_only") for one in again.stored] == [True, None]
    assert again.stored == json.loads(file.read_text())["records"] and again.stored[0]["accepted_by_target"] == 0.5
    assert again.done["ar", "a.mp4", 0].token_ids == [1, 2, 3]


def test_a_second_run_continues_before_and_after_the_end(tmp_path):
    file = tmp_path / "r.json"
    ResultsFile(file, SETTINGS, {}).add(("ar", "a.mp4", 0), record())
    second = ResultsFile(file, SETTINGS, {})
    restored = second.done["ar", "a.mp4", 0]
    assert restored.token_ids == [1, 2, 3] and restored.timings["decode"] == 1.0
    assert sorted((one.kind, one.end - one.start) for one in restored.trace.spans) == [
        ("draft", 0.125),
        ("verify", 0.5),
    ]
    second.add(("ar", "a.mp4", 1), record())
    second.finish(rows=[])
    assert len(ResultsFile(file, SETTINGS, {}).done) == 2


def test_a_record_that_was_cut_off_is_measured_again(tmp_path):
    file = tmp_path / "r.json"
    results = ResultsFile(file, SETTINGS, {})
    for repeat in range(2):
        results.add(("ar", "a.mp4", repeat), record())
    file.write_bytes(file.read_bytes()[:-60])
    assert list(ResultsFile(file, SETTINGS, {}).done) == [("ar", "a.mp4", 0)]


def test_other_settings_are_refused_and_overwriting_keeps_the_older_file(tmp_path):
    file = tmp_path / "r.json"
    ResultsFile(file, SETTINGS, {}).add(("ar", "a.mp4", 0), record())
    before = file.read_bytes()
    other = {**SETTINGS, "clips": [["b.mp4", 3]]}
    with pytest.raises(UsageError, match="other clips"):
        ResultsFile(file, other, {})
    assert file.read_bytes() == before
    assert ResultsFile(file, other, {}, overwrite=True).done == {}
    assert (tmp_path / "r.json~").read_bytes() == before


def test_an_empty_file_is_begun(tmp_path):
    file = tmp_path / "r.json"
    file.touch()
    assert ResultsFile(file, SETTINGS, {}).done == {}
    assert json.loads(file.read_text())["settings"] == SETTINGS


def test_another_kind_of_file_is_left_alone(tmp_path):
    file = tmp_path / "notes.json"
    file.write_text('{"mine": 1}')
    with pytest.raises(OutputError, match="holds no results"):
        ResultsFile(file, SETTINGS, {})
    with pytest.raises(OutputError, match=r"missing\.json: cannot be read"):
        read_results(tmp_path / "missing.json")
    assert file.read_text() == '{"mine": 1}'


def test_what_is_done_is_not_measured_again(tmp_path):
    calls = []

    def counted(name, clip):
        calls.append(name)
        return record(clip)

    contenders = {name: partial(counted, name) for name in "xy"}
    file, clips = tmp_path / "r.json", ["a.mp4", "b.mp4"]
    results = ResultsFile(file, SETTINGS, {})
    measure_in_turns(contenders, clips, 1, done=results.done, keep=results.add)
    assert len(calls) == 6  # a warm-up each, then two clips each
    calls.clear()
    again = ResultsFile(file, SETTINGS, {})
    measure_in_turns(contenders, clips, 1, done=again.done, keep=again.add)
    assert calls == []
    records = measure_in_turns(contenders, clips, 2, done=again.done, keep=again.add)
    assert len(calls) == 6 and len(records["x"]["b.mp4"]) == 2
    assert len(json.loads(file.read_text())["records"]) == 8
    assert [row.equal for row in bench_rows(records, "x")] == [2, 2]
