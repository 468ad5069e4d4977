"""Print the overview of replayed tables, and the papers' contradictions: ``python -m research.pages.papers``.

Every figure is computed as by ``python -m research.simulate --table NAME``; no model is run.
"""

from __future__ import annotations

import re
from statistics import mean

from research.replay.tables import Replay, names, replay

#: Notes that name a contradiction in a paper; the command prints the others, and those on single cells, too.
CONTRADICTIONS = re.compile(
    r"^(?!Claimed are|The paper times no).*(?:contradict|cannot|printed|leaves out|two things|repeat Spec)"
    r"(?!.*is what was used\.$)",
    re.IGNORECASE,
)


def page() -> str:
    """Return both, in Markdown."""
    replays = [replay(name) for name in names()]
    overview = [
        "| table | paper | cells with a claim | mean absolute deviation | within 5% | farthest off |",
        "| --- | --- | ---: | ---: | ---: | --- |",
        *map(_overview, replays),
    ]
    found = ["", "## Contradictions", *(line for one in replays for line in _contradictions(one))]
    return "\n".join([*overview, *found])


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


if __name__ == "__main__":
    print(page())
