"""Writes quality against speed: ``python docs/draw_pareto.py LLAVA.json QWEN.json LLAVA-BENCH.json QWEN-BENCH.json``.

The first two files are of ``vidspec bench pareto --json``, the others of ``vidspec bench``, see ``CONTROL``. The full
tables and pictures go to ``docs/pareto.md`` and ``docs/pareto-PAIR.svg``, one table of both pairs between the markers
of ``README.md``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from draw_measured import PAIRS, ROOT, full, into_readme

from vidspec.bench.pareto import Method, Outcome, markdown, outcome
from vidspec.bench.pareto_plot import draw
from vidspec.bench.quality import Estimate

ABOUT = """\
Every method that may change the text, with lossless ones beside it, measured by `vidspec bench pareto --pair PAIR
--clips-dir DIR --json FILE` and written here by `python docs/draw_pareto.py`. The clips are 200 that the models
have not seen, drawn with exact ground truth; the first of them were timed in one interleaved run with nothing else
on the machine, the others serve quality alone."""
CONTROL = """\
Loose profiles draft 10 tokens from a tenth of the video, `vanilla-sd` 5 from all of it. `vidspec bench CLIP...
--repeats 2 --no-peers --json FILE --profiles LIST` on 16 of the clips: with `lam=0` and no tolerance LVSpec's window is
verified exactly, which shows what the longer window gains and what the loose rule adds."""


def interval(value: Estimate | None) -> str:
    return "-" if value is None else f"{value.value:.2f} ({value.low:.2f}-{value.high:.2f})"


def cells(one: Method | None, clips: int) -> list[str]:
    """Of one pair; marked where quality is known of fewer than all ``clips``."""
    if one is None:
        return ["-"] * 4
    found = one.quality
    mark = "" if found.clips == clips else "*"
    return [
        "-" if one.speed is None else f"{one.speed.decode.value:.2f}x",
        "-" if found.tau is None else f"{found.tau:.2f}",
        interval(found.f1) + mark,
        interval(found.retention) + mark,
    ]


def combined(runs: list[Outcome]) -> str:
    """Both pairs side by side."""
    found = [{one.name: one for one in run.methods} for run in runs]
    most = [max(one.quality.clips for one in run.methods) for run in runs]
    lines = [
        "| method | kind | decode | tau | fact F1 | retention | decode | tau | fact F1 | retention |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(name for pair in found for name in pair):
        known = [pair.get(name) for pair in found]
        kind = next(one.kind for one in known if one is not None)
        row = [
            f"`{name}`" if name != "draft" else "the draft alone",
            kind,
            *(c for one, clips in zip(known, most, strict=True) for c in cells(one, clips)),
        ]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> None:
    runs = [outcome(json.loads(Path(name).read_text(encoding="utf-8"))) for name in sys.argv[1:3]]
    into_readme("pareto", combined(runs))
    parts = ["# Quality against speed", "", ABOUT]
    for pair, run in zip(PAIRS, runs, strict=True):
        picture = ROOT / "docs" / f"pareto-{pair}.svg"
        draw(run, [picture])
        parts += ["", f"## {pair}", "", f"![Retention of facts against speed-up]({picture.name})", "", markdown(run)]
    parts += ["", "## What the loose rule itself adds", "", CONTROL]
    for pair, name in zip(PAIRS, sys.argv[3:5], strict=True):
        parts += ["", f"### {pair}", "", full(json.loads(Path(name).read_text(encoding="utf-8")))]
    (ROOT / "docs" / "pareto.md").write_text("\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
