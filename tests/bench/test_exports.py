"""CSV of a bench."""

import csv
import io
import random
import re

import pytest

from vidspec.bench.exports import CSV, csv_table
from vidspec.bench.rows import bench_rows
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


def test_csv_has_a_column_for_each_figure():
    text = csv_table(rows_of(12))
    plain, same, twice = csv.DictReader(io.StringIO(text))
    assert (plain["method"], plain["same_tokens"], plain["clips"]) == ("ar", "12", "12")
    assert plain["tau"] == "" and float(same["decode"]) == pytest.approx(1.0, rel=0.05)
    assert twice["method"] == "'=twice & 50%"  # no formula
    assert float(twice["decode_min"]) < float(twice["decode"]) < float(twice["decode_max"])
    assert float(twice["decode"]) == pytest.approx(2.0, rel=0.05)
    assert re.match(CSV.mark, text.encode())
