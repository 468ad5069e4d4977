"""``python -m research.suites``: what it runs, and the papers' tables behind the bench's own."""

from pathlib import Path

import pytest

from research.results.rows import StudiedBench, StudiedRow

pytestmark = pytest.mark.full


def test_a_suite_names_what_is_run_and_prints_the_papers_table(command, monkeypatch):
    def measure(bench, say):
        ones = (1.0, 1.0, 1.0)
        rows = [StudiedRow(name, 1, 1, 2.0, 3.0, None, 1.0, ones, ones, ones) for name in bench.profiles]
        return StudiedBench(rows, "all rows", {"cores": 2}, {}, studied=rows)

    monkeypatch.setattr("research.peers.bench.measure", measure)
    written = command("suites", "lvspec-2", "--latex", "table.tex", "--csv", "table.csv")
    out = written.out
    assert written.code == 0 and Path("table.csv").read_text().count("\n") == 4
    rows = [line for line in Path("table.tex").read_text().splitlines() if line.endswith(r"1.00$\times$ \\")]
    assert [line.partition(" & ")[0] for line in rows] == ["Autoregressive", "without PST", "with PST"]
    assert out.startswith("all rows\ncores 2\n\n### LVSpec Table 2 (`lvspec-2`)\n")
    assert [line.split("`")[1] for line in out.splitlines() if " | `" in line] == ["ar", "lvspec-no-shift", "lvspec"]
    assert command("suites", "papers").out.count("###") == 28
    assert command("suites", "pareto").out == "all rows\ncores 2\n"


@pytest.mark.parametrize(
    "args, complaint",
    [
        ((), "Missing argument"),
        (("lvspec-99",), "no suite is called 'lvspec-99'"),
        (("lvspec-1", "--repeats", "0"), "--repeats"),
        (("lvspec-1", "--draft", "x"), "--target: is needed with --draft"),
        (("lvspec-1", "--turn", " "), "--turn: is empty"),
        (("pareto", "--csv", "table.csv"), "--csv: pareto is no paper's table"),
    ],
)
def test_bad_input_ends_in_one_line(command, args, complaint):
    ran = command("suites", *args)
    assert ran.code in (1, 2, 3) and ran.out == ""
    assert ran.err.startswith("error: ") and complaint in ran.err and ran.err.count("\n") == 1
