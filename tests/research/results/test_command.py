"""``python -m research.results``: the statistics of a finished bench, from its file."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from research.judging import ACCEPTED
from tests.research.results.measured import METHODS, measured
from vidspec.bench.results import ResultsFile
from vidspec.bench.rows import bench_rows


@pytest.fixture
def finished(tmp_path):
    records = {name: measured(factor, 12, name) for name, factor in METHODS.items()}
    results = ResultsFile(tmp_path / "r.json", {"pair": "embedded", "profiles": {}}, {"cores": 2})
    for name, by_clip in records.items():
        for clip, (caption,) in by_clip.items():
            results.add((name, clip, 0), replace(caption, demo=True), **({} if name == "ar" else {ACCEPTED: 0.25}))
    rows = [asdict(row) | {"place": 7} for row in bench_rows(records, "ar")]  # as earlier versions stored it
    results.finish(rows=rows, left_out={"x_y": "no head"})


def test_places_noise_and_judgements_are_computed_from_the_records(command, finished):
    ran = command("results", "r.json")
    header, _, *rows = ran.out.splitlines()
    assert ran.code == 0 and header.endswith("| end to end | speed model | accepted by target |")
    cells = {(one := [cell.strip() for cell in row.split("|")])[1]: one for row in rows[:3]}
    assert cells["=twice & 50%"][2] == "1" and cells["same_again"][2] == cells["ar"][2] == "2"
    assert cells["same_again"][4].endswith(" ns") and not cells["=twice & 50%"][4].endswith("ns")
    assert cells["ar"][7] == "-" and cells["same_again"][7] == "25.0%"


def test_latex_replaces_only_its_own(command, finished):
    for _ in range(2):
        assert command("results", "r.json", "--latex", "table.tex").code == 0
    latex = Path("table.tex").read_text().splitlines()
    assert latex[:2] == ["% vidspec bench: r.json", "% left out: x_y: no head"]
    Path("mine.tex").write_text("mine")
    assert "exists already, and is not a LaTeX" in command("results", "r.json", "--latex", "mine.tex").err
    assert Path("mine.tex").read_text() == "mine"


def test_a_bench_that_goes_on_has_no_statistics(command, tmp_path):
    ResultsFile(tmp_path / "r.json", {}, {})
    ran = command("results", "r.json")
    assert ran.code == 2 and "r.json: that bench has not finished" in ran.err
