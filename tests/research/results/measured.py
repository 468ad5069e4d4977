"""Rows of a bench of three methods, and benches of given times."""

import random

from research.results.rows import StudiedRow, study
from vidspec.bench.rows import bench_rows
from vidspec.events.record import Caption

METHODS = {"ar": 1.0, "same_again": 1.0, "=twice & 50%": 2.0}
ONE = (1.0, 1.0, 1.0)
MEASURED = [
    StudiedRow("ar", 2, 2, None, 1.0, None, 40.0, ONE, ONE, ONE, place=2),
    StudiedRow(
        "fast",
        2,
        2,
        4.0,
        5.0,
        0.1,
        100.0,
        (0.9, 0.8, 1.0),
        (2.5, 2.0, 4.0),
        (2.0, 1.5, 3.0),
        model=2.4,
        also=("quick",),
    ),
    StudiedRow(
        "slow", None, 2, 1.0, 2.0, 1.0, 20.0, (0.8, 0.7, 0.9), (0.5, 0.4, 0.6), (0.6, 0.5, 0.7), model=0.5, place=3
    ),
]


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
    """Plain decoding, the same again, and a method twice as fast."""
    records = {name: measured(factor, clips, name) for name, factor in METHODS.items()}
    return study(bench_rows(records, "ar"), records)
