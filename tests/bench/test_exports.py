"""CSV and LaTeX of a bench, and the marks of speed-ups within noise."""

import csv
import io
import random
import re

import pytest

from vidspec.bench.compare import is_significant
from vidspec.bench.exports import CSV, LATEX, csv_table, latex_table
from vidspec.bench.rows import bench_rows, markdown
from vidspec.events.record import Caption


def measured(factor, clips, seed):
    """Captions of 11 tokens in about 1 / ``factor`` seconds; clips vary by some 5%."""
    draw = random.Random(seed)
    found = {}
    for clip in range(clips):
        decode = draw.uniform(0.95, 1.05) / factor
        timings = {"time_to_first_token": 1.0, "decode": decode, "end_to_end": 1.0 + decode}
        found[f"{clip}.mp4"] = [Caption(f"{clip}.mp4", "x", token_ids=list(range(11)), timings=timings)]
    return found


def rows_of(clips):
    return bench_rows({name: measured(factor, clips, name) for name, factor in METHODS.items()}, "ar")


METHODS = {"ar": 1.0, "same_again": 1.0, "=twice & 50%": 2.0}


def test_differences_within_noise_are_marked():
    plain, same, twice = rows_of(12)
    assert plain.noise is None and same.noise == ("first", "decode", "end_to_end") and twice.noise == ("first",)
    table = markdown([plain, same, twice], "ar", lambda _: 1.0).splitlines()
    assert [line.count("x (") - line.count(") ns") for line in table[2:5]] == [3, 0, 2]
    assert table[-1].startswith("ns: within noise of ar")


def test_few_clips_give_no_verdict():
    rows = rows_of(7)
    assert [row.noise for row in rows] == [None, None, None]
    assert "ns" not in markdown(rows, "ar", lambda _: 1.0).replace("tokens", "").replace("runs", "")
    assert is_significant([2.0] * 7 + [0.0, float("inf")]) is None
    assert is_significant([2.0] * 8) and is_significant([0.9, 1.1] * 5) is False


def test_csv_has_a_column_for_each_figure():
    text = csv_table(rows_of(12))
    plain, same, twice = csv.DictReader(io.StringIO(text))
    assert (plain["method"], plain["same_tokens"], plain["clips"]) == ("ar", "12", "12")
    assert plain["tau"] == plain["decode_significant"] == ""
    assert (same["decode_significant"], twice["decode_significant"]) == ("False", "True")
    assert twice["method"] == "'=twice & 50%"  # no formula
    assert float(twice["decode_min"]) < float(twice["decode"]) < float(twice["decode_max"])
    assert float(twice["decode"]) == pytest.approx(2.0, rel=0.05)
    assert re.match(CSV.mark, text.encode())


def test_latex_is_a_tabular_with_escaped_names():
    rows = rows_of(12)
    text = latex_table(rows, "vidspec bench --set\nx", {"eagle3": "no head"})
    lines = text.splitlines()
    assert lines[0] == r"% vidspec bench: vidspec bench --set\nx" and lines[1] == "% left out: eagle3: no head"
    assert r"same\_again & 12/12 & " in text and r"=twice \& 50\% & " in text
    body = [line for line in lines if line.endswith(r"\\")]
    assert len(body) == 4 and {line.replace(r"\&", "").count("&") for line in body} == {7}
    assert text.count(r"\hline") == 3 and lines[-1] == r"\end{tabular}" and " ns " in body[2]
    assert re.match(LATEX.mark, text.encode())
