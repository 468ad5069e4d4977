"""Write the page of replayed tables: ``python -m research.pages.papers docs/research/papers.md``; ``-`` prints it.

Every figure is computed as by ``python -m research.simulate --table NAME``; no model is run.
"""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from statistics import mean

from research.replay.tables import Prediction, Replay, names, replay
from research.simulate import main as simulate

#: A table with more rows than this is summarised by method.
LONGEST = 20
#: Notes on single cells, or on figures that the overview has: printed by the command, left out of a summary.
CELLS = re.compile(r"^- (?:Mean absolute deviation|Assumed for)|is what was used\.$")

HEAD = """# The papers' tables, replayed

This page asks whether a paper's own figures agree. The forward times and accepted lengths that the paper prints go
through vidspec's scheduler under a virtual clock; the result is compared with the speed-up that the paper claims. No
model is run, and nothing here was measured by this project.

- **predicted**: simulated. **formula**: the closed form (none for end-to-end rows). **claimed**: printed in the paper.
  **deviation**: predicted / claimed - 1, positive if the paper claims less than its own figures imply.
- A large deviation has three possible reasons: an assumed figure (marked \\*), costs that the paper does not list
  (pruning, communication, batch effects), or contradictions in the paper. Each table is followed by its assumptions and
  contradictions.
- If the paper gives no output length, texts of 1200 tokens are simulated, with a random error of about 1%.

Tables of more than {longest} rows are summarised: one line for each method, averaged over pairs of models and
benchmarks. The command above each table prints all rows and the assumptions of each.
"""


def page() -> str:
    """Return the whole page, in Markdown."""
    replays = [replay(name) for name in names()]
    overview = [
        "| table | paper | cells with a claim | mean absolute deviation | within 5% | farthest off |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        *map(_overview, replays),
    ]
    sections = [_section(one) for one in replays]
    return "\n".join([HEAD.format(longest=LONGEST), *overview, *sections]) + "\n"


def _overview(one: Replay) -> str:
    off = [row.deviation for row in one.rows if row.deviation is not None]
    link = f"[{one.name}](#{one.name})"
    if not off:
        return f"| {link} | {one.paper} | 0 | | | |"
    near = sum(abs(value) <= 0.05 for value in off) / len(off)
    average = mean(map(abs, off))
    return f"| {link} | {one.paper} | {len(off)} | {average:.1%} | {near:.0%} | {max(off, key=abs):+.1%} |"


def _section(one: Replay) -> str:
    arguments = ["--table", one.name]
    printed = io.StringIO()
    with redirect_stdout(printed):
        simulate([*arguments, "--format", "markdown"])
    lines = printed.getvalue().splitlines()
    if len(one.rows) > LONGEST:
        table = [at for at, line in enumerate(lines) if line.startswith("|")]
        lines[table[0] : table[-1] + 1] = _summary(one.rows)
        lines = [line for line in lines if not CELLS.search(line)]
    return "\n".join(["", f"## {one.name}", "", f"`python -m research.simulate {' '.join(arguments)}`", "", *lines])


def _summary(rows: tuple[Prediction, ...]) -> list[str]:
    groups: dict[str, list[Prediction]] = {}
    for row in rows:
        groups.setdefault(row.method, []).append(row)
    return [
        "| method | cells | predicted | claimed | mean deviation | farthest off | assumed |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
        *(_line(method, group) for method, group in groups.items()),
    ]


def _line(method: str, group: list[Prediction]) -> str:
    claims = [row.claimed for row in group if row.claimed is not None]
    off = {f"{row.models}, {row.benchmark}": row.deviation for row in group if row.deviation is not None}
    farthest = max(off, key=lambda name: abs(off[name]), default=None)
    cells = [
        method.replace("*", r"\*"),
        str(len(group)),
        f"{mean(row.predicted for row in group):.2f}",
        f"{mean(claims):.2f}" + (f" ({len(claims)} of {len(group)})" if len(claims) < len(group) else "")
        if claims
        else "",
        f"{mean(off.values()):+.1%}" if off else "",
        f"{off[farthest]:+.1%} {farthest}" if farthest is not None else "",
        r"\*" if any(row.assumed for row in group) else "",
    ]
    return f"| {' | '.join(cells)} |"


def main(out: str) -> None:
    if out == "-":
        print(page(), end="")
    else:
        Path(out).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
