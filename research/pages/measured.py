"""Writes the measured tables: ``python -m research.pages.measured LLAVA.json QWEN.json [AUTO.json ...]``.

The tables go to ``docs/measured.md``. Each AUTO.json holds ``auto`` beside other profiles on many clips; their totals
get a section of their own. What people wrote of them, and what ``measure_engine.py`` and ``measure_throughput.py``
printed, stands from the page's section "What it says" on and stays as it is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from vidspec.bench.compare import places

ROOT = Path(__file__).resolve().parents[2]
PAIRS = ("embedded", "embedded-qwen")
ABOUT = """\
Every lossless profile and `transformers`' own `generate`, measured by `vidspec bench --profiles all --pair PAIR
--repeats 2 --json FILE` and written here by `python -m research.pages.measured`. After a warm-up of each, all took
turns on every one of the four sample clips, twice; speed-ups are medians over clips of ratios to `ar` on the same clip,
with the least and the greatest. Those that take turns have both cores; of the parallel ones each worker has one.
*Speed model* is what the formulas of `vidspec/draft_length/speed.py` give for the same run's forward times and accepted
lengths: for the parallel profiles the renewal formula."""

AUTO = """\
`python -m research.draw --out clips --count 50 --seed 20000000`, then `vidspec bench clips/*.mp4 --profiles LIST
--repeats 1 --no-peers --json FILE`: all in turn on each of 50 clips. `auto` begins knowing nothing, so what it measures
on the first clip and what it tries on the next ones is in its time."""


def number(value: float | None, places: int = 2) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def spread(values: list[float]) -> str:
    return f"{values[0]:.2f}x ({values[1]:.2f}-{values[2]:.2f})"


def names_of(row: dict[str, Any]) -> str:
    """A way of captioning under all its names; it was measured once."""
    return " = ".join([row["name"], *row.get("also", ())])


def full(run: dict[str, Any]) -> str:
    """One pair with spreads and the speed model."""
    lines = [
        "| profile | same tokens as ar | tau | tokens / target pass | run length | kept | tokens/s | first token | "
        "decode | speed model | end to end |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in run["rows"]:
        kept = "-" if row["kept"] is None else f"{row['kept']:.0%}"
        lines.append(
            f"| {names_of(row)} | {row['equal']}/{row['clips']} | {number(row['tau'])} | "
            f"{number(row['tokens_per_target_pass'])} | {number(row.get('run_length'))} | {kept} | "
            f"{row['tokens_per_s']:.0f} | {spread(row['first'])} | {spread(row['decode'])} | {number(row['model'])} | "
            f"{spread(row['end_to_end'])} |"
        )
    return "\n".join(lines)


def totals(run: dict[str, Any]) -> str:
    """Time of all clips together, in which what ``auto`` spends on measuring counts, the fastest first.

    Profiles whose times over clips differ by less than they vary share a place.
    """
    spent: dict[str, dict[str, float]] = {}
    planning = 0.0
    for record in run["records"]:
        taken = spent.setdefault(record["contender"], {})
        taken[record["path"]] = taken.get(record["path"], 0.0) + record["timings"]["end_to_end"]
        planning += record["timings"].get("plan", 0.0) if record["contender"] == "auto" else 0.0
    plain = spent["ar"]
    rows = {row["name"]: row for row in run["rows"]}
    lines = [
        f"`auto` spent {planning:.2f} s of its {sum(spent['auto'].values()):.1f} s on measuring.",
        "",
        "| place | profile | same tokens as ar | all clips, s | over ar | by clip: median (least-greatest) |",
        "|---|---|---|---|---|---|",
    ]
    ranked = places({name: {clip: 1 / seconds for clip, seconds in taken.items()} for name, taken in spent.items()})
    for name, taken in sorted(spent.items(), key=lambda item: (ranked[item[0]], sum(item[1].values()))):
        ratios = sorted(plain[clip] / seconds for clip, seconds in taken.items())
        middle = median(ratios)
        lines.append(
            f"| {ranked[name]} | {names_of(rows[name])} | {rows[name]['equal']}/{rows[name]['clips']} | "
            f"{sum(taken.values()):.1f} | {sum(plain.values()) / sum(taken.values()):.2f}x | "
            f"{middle:.2f}x ({ratios[0]:.2f}-{ratios[-1]:.2f}) |"
        )
    return "\n".join(lines)


def write(page: Path, parts: list[str]) -> None:
    """Put the measured part before what people wrote about it."""
    _, heading, rest = page.read_text(encoding="utf-8").partition("\n## What it says\n")
    page.write_text("\n".join(parts) + "\n" + heading + rest, encoding="utf-8")


def main() -> None:
    runs = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:3]]
    parts = ["# Measured", "", ABOUT]
    for pair, run in zip(PAIRS, runs, strict=True):
        facts = ", ".join(f"{key} {value}" for key, value in run["machine"].items())
        parts += ["", f"## {pair}", "", facts, "", full(run)]
    for name in sys.argv[3:]:
        run = json.loads(Path(name).read_text(encoding="utf-8"))
        facts = ", ".join(f"{key} {value}" for key, value in run["machine"].items())
        parts += [
            "",
            f"## `auto` against hand-picked profiles: {run['settings']['pair']}",
            "",
            AUTO,
            "",
            facts,
            "",
            totals(run),
        ]
    write(ROOT / "docs" / "measured.md", parts)


if __name__ == "__main__":
    main()
