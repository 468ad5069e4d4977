"""Results of a bench beyond medians: marks of speed-ups within noise, turns, and LaTeX."""

import re

from research.compare import is_significant
from research.results.latex import LATEX, latex_table
from research.results.rows import markdown, study
from tests.research.results.measured import measured, rows_of
from vidspec.bench.rows import bench_rows, turn_label


def test_differences_within_noise_are_marked():
    plain, same, twice = rows_of(12)
    assert plain.noise is None and same.noise == ("first", "decode", "end_to_end") and twice.noise == ("first",)
    table = markdown([plain, same, twice]).splitlines()
    assert [line.count("x (") - line.count(") ns") for line in table[2:5]] == [3, 0, 2]
    assert table[-1].startswith("ns: within noise of ar")


def test_few_clips_give_no_verdict():
    rows = rows_of(7)
    assert [row.noise for row in rows] == [None, None, None]
    assert "ns" not in markdown(rows).replace("tokens", "").replace("runs", "")
    assert is_significant([2.0] * 7 + [0.0, float("inf")]) is None
    assert is_significant([2.0] * 8) and is_significant([0.9, 1.1] * 5) is False


def test_each_turn_of_a_dialogue_is_ranked_by_itself():
    records = {
        turn_label(name, turn): measured(factor, 12, f"{name}{turn}")
        for turn, names in enumerate((("ar", "fast"), ("ar", "fast")))
        for name, factor in zip(names, (1.0, 2.0) if not turn else (3.0, 1.0), strict=True)
    }
    parts = [[turn_label(name, turn) for name in ("ar", "fast")] for turn in (0, 1)]
    rows = [row for part in parts for row in bench_rows({name: records[name] for name in part}, part[0])]
    assert [row.place for row in study(rows, records, {"fast": 0.5})] == [2, 1, 1, 2]
    first, second = markdown(study(rows, records, {"fast": 0.5})).split("\n\n| method")
    assert "| 50.0% |" in first and "accepted by target" not in second and "| fast, turn 2 | 2 |" in second


def test_latex_is_a_tabular_with_escaped_names():
    rows = rows_of(12)
    text = latex_table(rows, "results\n.json", {"eagle3": "no head"})
    lines = text.splitlines()
    assert lines[0] == r"% vidspec bench: results\n.json" and lines[1] == "% left out: eagle3: no head"
    assert r"same\_again & 12/12 & " in text and r"=twice \& 50\% & " in text
    body = [line for line in lines if line.endswith(r"\\")]
    assert len(body) == 4 and {line.replace(r"\&", "").count("&") for line in body} == {7}
    assert (
        [text.count(rf"\{rule}rule") for rule in ("top", "mid", "bottom")] == [1, 1, 1]
        and lines[-1] == r"\end{tabular}"
        and " ns " in body[2]
    )
    assert re.match(LATEX.mark, text.encode())
