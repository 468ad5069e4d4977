"""A whole bench with the built-in pair: one contender for each way of captioning, and what a pruned target did."""

import json
from dataclasses import replace

import pytest

from vidspec.bench.measure import Bench, measure
from vidspec.config.files import packaged_folder
from vidspec.embedded.samples import shipped
from vidspec.errors import UsageError

pytestmark = pytest.mark.full

SMALL = "+video.frames=4+generate.max_new_tokens=12"


@pytest.fixture
def twin(tmp_path):
    """A profile that differs from ``ar`` in its name and in what it says of itself."""
    text = (packaged_folder() / "ar.yaml").read_text().splitlines()[2:]
    path = tmp_path / "plain.yaml"
    path.write_text("\n".join(["name: plain", "about: The same.", *text]))
    return str(path)


def test_lossy_rows_and_names_of_one_thing(twin, tmp_path):
    names = [f"ar{SMALL}", f"{twin}{SMALL}", f"fastv{SMALL}", f"fastv{SMALL}+lossy.keep=[1]"]
    file = tmp_path / "r.json"
    bench = Bench(names, shipped()[:1], repeats=1, json=file)
    found = measure(bench)
    assert list(found.records) == [names[0], names[2], names[3]]
    plain, pruned, whole = found.rows
    assert plain.names == f"{names[0]} = {names[1]}" and not pruned.also
    assert f"| {plain.names} | 1/1 |" in found.table
    assert plain.retention is None and whole.retention == 1.0
    assert pruned.retention == pytest.approx(0.1, abs=0.02)
    header, rule, *rows = found.table.splitlines()
    assert header.endswith("| target reads |") and len({row.count("|") for row in rows}) == 1
    assert header.count("|") == rule.count("|") == rows[0].count("|")
    assert json.loads(file.read_text())["rows"][1]["retention"] == pruned.retention


def test_keys_of_all_profiles_are_settings_of_the_results(tmp_path):
    """They hold for every label that does not set them itself; a file with others is refused."""
    file = tmp_path / "r.json"
    keys = {"video.frames": 2, "generate.max_new_tokens": "3", "generate.prompt": "What moves?"}
    bench = Bench(["ar", "ar+generate.max_new_tokens=2"], shipped()[:1], repeats=1, json=file, overrides=keys)
    rows = measure(bench).rows
    assert [row.tokens for row in rows] == [3, 2]
    content = json.loads(file.read_text())
    assert content["settings"]["overrides"] == keys and content["records"][0]["video"]["frames"] == 2
    for other in ({}, {**keys, "video.frames": 3}):
        with pytest.raises(UsageError, match="other profiles, overrides"):
            measure(replace(bench, overrides=other))


def test_turns_are_measured_apart(tmp_path):
    names, file = [f"ar{SMALL}", f"tabed-mt{SMALL}"], tmp_path / "r.json"
    turns = ("Describe the video.", "Where does it end?")
    bench = Bench(names, shipped()[:1], repeats=1, json=file, turns=turns)
    found = measure(bench)
    assert [row.name for row in found.rows] == [*names, *(f"{name}, turn 2" for name in names)]
    assert all(row.equal == row.clips == 1 for row in found.rows) and found.rows[2].decode == (1.0, 1.0, 1.0)
    first, second = (table.splitlines()[0] for table in found.table.split("\n\n"))
    assert f"same tokens as {names[0]} |" in first and f"same tokens as {names[0]}, turn 2 |" in second
    (asked,) = (one.question for one in found.records[f"{names[1]}, turn 2"][str(shipped()[0])])
    assert (asked["index"], asked["prompt"]) == (1, turns[1]) and asked["reused"] > 0
    said = []
    assert measure(bench, said.append).records.keys() == found.records.keys()
    assert "continuing after 4 records" in said[0]
    with pytest.raises(UsageError, match="other turns"):
        measure(replace(bench, turns=turns[:1]))
