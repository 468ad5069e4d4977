"""Write the page of replayed tables: ``python -m research.pages.papers docs/research/papers.md``; ``-`` prints it.

Every figure is computed as by ``python -m research.simulate --table NAME``; no model is run.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from statistics import mean

from research.replay.tables import Replay, names, replay

HEAD = """# The papers' tables, replayed

This page asks whether a paper's own figures agree. The forward times and accepted lengths that the paper prints go
through vidspec's scheduler under a virtual clock; the result is compared with the speed-up that the paper claims. No
model is run, nothing here is measured.

```console
$ python -m research.simulate --table {first}    # every row of a table, and its assumptions
```

*Deviation* is predicted / claimed - 1, positive if the paper claims less than its own figures imply. A large one has
three possible reasons: an assumed figure, costs that the paper does not list (pruning, communication, batch effects),
or contradictions in the paper. If it gives no output length, 1200 tokens are simulated (random error about 1%).
"""
#: Notes that name a contradiction in a paper; the command prints the others, and those on single cells, too.
CONTRADICTIONS = re.compile(
    r"^(?!Claimed are|The paper times no).*(?:contradict|cannot|printed|leaves out|two things|repeat Spec)"
    r"(?!.*is what was used\.$)",
    re.IGNORECASE,
)


def page() -> str:
    """Return the whole page, in Markdown."""
    replays = [replay(name) for name in names()]
    overview = [
        "| table | paper | cells with a claim | mean absolute deviation | within 5% | farthest off |",
        "| --- | --- | ---: | ---: | ---: | --- |",
        *map(_overview, replays),
    ]
    found = ["", "## Contradictions", *(line for one in replays for line in _contradictions(one))]
    return "\n".join([HEAD.format(first=names()[0]), *overview, *found]) + "\n"


def _overview(one: Replay) -> str:
    claimed = [row for row in one.rows if row.deviation is not None]
    off = [row.deviation for row in claimed if row.deviation is not None]
    if not off:
        return f"| `{one.name}` | {one.paper} | 0 | | | |"
    near = sum(abs(value) <= 0.05 for value in off) / len(off)
    farthest = max(claimed, key=lambda row: abs(row.deviation or 0))
    worst = f"{farthest.deviation:+.1%} {farthest.method}, {farthest.models}".replace("*", r"\*")
    return f"| `{one.name}` | {one.paper} | {len(off)} | {mean(map(abs, off)):.1%} | {near:.0%} | {worst} |"


def _contradictions(one: Replay) -> list[str]:
    notes = [f"- {note}".replace("*", r"\*") for note in one.notes if CONTRADICTIONS.search(note)]
    return ["", f"`{one.name}`", "", *notes] if notes else []


def main(out: str) -> None:
    if out == "-":
        print(page(), end="")
    else:
        Path(out).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
