"""Pictures of a bench: which are drawn, and what is said where they cannot be."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from research.plots import check, draw
from vidspec.bench.results import ResultsFile
from vidspec.bench.rows import BenchRow
from vidspec.errors import UsageError
from vidspec.events.record import Caption

pytestmark = pytest.mark.full

PLAIN = BenchRow("ar", 1, 1, None, None, None, 10.0, (1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
FAST = BenchRow("sd-attention", 1, 1, 3.0, 4.0, 0.1, 20.0, (0.9, 0.8, 1.0), (2.0, 1.5, 2.5), (1.8, 1.2, 2.0))


OTHERS = ("m-against-alpha", "accepted")


def records(**counters):
    return {"a.mp4": [Caption("a.mp4", "x", counters=counters)]}


def test_three_pictures(tmp_path):
    drafted = records(drafted=10, accepted_lengths=[4, 2, 2])
    files = draw([PLAIN, FAST], {"ar": records(), "sd-attention": drafted}, tmp_path / "new")
    assert [file.name for file in files] == ["speedup.svg", "m-against-alpha.svg", "accepted.svg"]
    for file in files:
        assert ElementTree.parse(file).getroot().tag.endswith("svg")
    check(tmp_path / "new")  # they may be drawn again


def test_what_drafted_nothing_has_only_bars(tmp_path):
    assert [file.name for file in draw([PLAIN], {"ar": records()}, tmp_path)] == ["speedup.svg"]


def test_without_matplotlib_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install matplotlib"):
        check(tmp_path)


def test_pictures_replace_none_of_others(command):
    Path("plots").mkdir()
    Path("plots/accepted.svg").write_text("<svg/>")
    ran = command("plots", "bench.json", "--out", "plots")
    assert ran.code == 2 and "error: --out plots/accepted.svg: exists already" in ran.err


def test_a_finished_bench_is_drawn_from_its_file(command, tmp_path):
    results = ResultsFile(tmp_path / "bench.json", {}, {})
    results.add(("ar", "a.mp4", 0), Caption("a.mp4", "x"))
    assert "bench.json: that bench has not finished" in command("plots", "bench.json", "--out", "new").err
    drafted = records(drafted=10, accepted_lengths=[4, 2, 2])
    results.add(("sd-attention", "a.mp4", 0), drafted["a.mp4"][0])
    results.finish(rows=[asdict(PLAIN), asdict(FAST)])
    ran = command("plots", "bench.json", "--out", "new")
    assert ran.code == 0 and ran.err == "".join(f"drew new/{name}.svg\n" for name in ("speedup", *OTHERS))
    by_hand = draw(
        [PLAIN, FAST], {"ar": records(), "sd-attention": records(drafted=10, accepted_lengths=[4, 2, 2])}, tmp_path
    )
    for file in by_hand:
        assert len(file.read_text()) == len((tmp_path / "new" / file.name).read_text())
