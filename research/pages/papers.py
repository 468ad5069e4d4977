"""Write the page of replayed tables: ``python -m research.pages.papers docs/research/papers.md``; ``-`` prints it.

Every figure is computed as by ``python -m research.simulate --table NAME``; no model is run.
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path
from statistics import mean

from research.replay.tables import Prediction, Replay, names, replay
from research.simulate import main as simulate

#: A table with more rows than this is summarised by method.
LONGEST = 60

HEAD = """# The papers' tables, replayed

The forward times and accepted lengths that a paper prints go through this project's own scheduler, the one of the real
workers, under a virtual clock. The result is the speed-up that those figures imply, beside the speed-up that the paper
claims. No model is run, and nothing here was measured by this project.

- **predicted** is simulated; **formula** is the closed form (the renewal formula for parallel methods, Leviathan's for
  sequential ones; none for end-to-end rows); **claimed** is printed in the paper. **deviation** is
  predicted / claimed - 1: positive if the paper claims less than its own figures imply.
- A small deviation means that the paper's times, lengths and speed-ups agree under this schedule, not that the method
  gives these lengths elsewhere.
- A large deviation has three possible reasons: an assumed figure (marked \\*), costs that the paper does not list
  (pruning, communication, batch effects), or contradictions between the paper's figures. Assumptions and contradictions
  are listed below each table.
- If the output length is not given, texts of 1200 tokens are simulated; the random error is then about 1%.
- Start-up tokens of a parallel prefill are simulated with the same acceptance as any other token. If a text's first
  word is open, fewer are accepted.

Tables of more than {longest} rows are summarised, with one line for each method and pair of models, averaged over the
benchmarks; the command above each prints all rows.
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
    return "\n".join(["", f"## {one.name}", "", f"`python -m research.simulate {' '.join(arguments)}`", "", *lines])


def _summary(rows: tuple[Prediction, ...]) -> list[str]:
    groups: dict[tuple[str, str], list[Prediction]] = {}
    for row in rows:
        groups.setdefault((row.method, row.models), []).append(row)
    return [
        "| method | models | benchmarks | predicted | claimed | mean deviation | farthest off | assumed |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- | --- |",
        *(_line(method, models, group) for (method, models), group in groups.items()),
    ]


def _line(method: str, models: str, group: list[Prediction]) -> str:
    claims = [row.claimed for row in group if row.claimed is not None]
    off = {row.benchmark: row.deviation for row in group if row.deviation is not None}
    farthest = max(off, key=lambda name: abs(off[name]), default=None)
    cells = [
        method.replace("*", r"\*"),
        models,
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
