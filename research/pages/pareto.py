"""Writes quality against speed: ``research.pages.pareto LLAVA.json QWEN.json LLAVA-BENCH.json QWEN-BENCH.json``.

The first two files are of ``research.pareto --json``, the others of ``vidspec bench``, see ``CONTROL``. The full
tables and pictures go to ``docs/pareto.md`` and ``docs/pareto-PAIR.svg``; what people wrote about them stays.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from research.pages.measured import PAIRS, ROOT, full, write
from research.pareto.outcome import markdown, outcome
from research.pareto.plot import draw

ABOUT = """\
Every method that may change the text, with lossless ones beside it, measured by `python -m research.pareto --pair PAIR
--clips-dir DIR --json FILE` and written here by `python -m research.pages.pareto`. The clips are 200 that the models
have not seen, drawn with exact ground truth; the first of them were timed in one interleaved run with nothing else
on the machine, the others serve quality alone."""
CONTROL = """\
Loose profiles draft 10 tokens from a tenth of the video, `vanilla-sd` 5 from all of it. `vidspec bench CLIP...
--repeats 2 --no-peers --json FILE --profiles LIST` on 16 of the clips: with `lam=0` and no tolerance LVSpec's window is
verified exactly, which shows what the longer window gains and what the loose rule adds."""


def main() -> None:
    runs = [outcome(json.loads(Path(name).read_text(encoding="utf-8"))) for name in sys.argv[1:3]]
    parts = ["# Quality against speed", "", ABOUT]
    for pair, run in zip(PAIRS, runs, strict=True):
        picture = ROOT / "docs" / f"pareto-{pair}.svg"
        draw(run, [picture])
        parts += ["", f"## {pair}", "", f"![Retention of facts against speed-up]({picture.name})", "", markdown(run)]
    parts += ["", "## What the loose rule itself adds", "", CONTROL]
    for pair, name in zip(PAIRS, sys.argv[3:5], strict=True):
        parts += ["", f"### {pair}", "", full(json.loads(Path(name).read_text(encoding="utf-8")))]
    write(ROOT / "docs" / "pareto.md", parts)


if __name__ == "__main__":
    main()
