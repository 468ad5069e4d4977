"""Tables of the ``vidspec profile`` report: drawn by Rich, as Markdown, as rows for pipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from vidspec.bench.breakdown import OTHER
from vidspec.bench.passes import MAX_ROWS
from vidspec.bench.profiled import ProfileBreakdown, ProfileReport
from vidspec.bench.tables import aligned, bullets, cell, facts_line, table
from vidspec.events.trace import KINDS

#: Rows n of T_p(n) in the tables; JSON has all.
ROWS_SHOWN = (1, 2, 4, 6, 8, 16, MAX_ROWS)
BAR = 12
K = TypeVar("K", int, float)


@dataclass(frozen=True)
class _Table:
    """A table before it is drawn: ``rows`` of cells, and for each row its bars as shares of the wall clock."""

    title: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    shares: Sequence[tuple[float | None, ...]] = ()


def _sheets(report: ProfileReport) -> Iterator[_Table]:
    yield _time_table(report.runs)
    if beside := [one for one in report.runs if one.breakdown.overlap > 0]:
        yield _worker_table(beside)
    if timed := [one for one in report.runs if one.passes]:
        yield _pass_table(timed)


def _time_table(runs: Sequence[ProfileBreakdown]) -> _Table:
    clocks = [one.breakdown for one in runs]
    kinds = [kind for kind in (*KINDS, OTHER) if any(kind in one.parts for one in clocks)]
    rows = [(kind, *(_share(one.parts.get(kind), one.wall) for one in clocks)) for kind in kinds]
    rows.append(("wall clock", *(_ms(one.wall) for one in clocks)))
    rows.append(("tokens", *(str(one.tokens) for one in runs)))
    rows.append(("tokens/s", *(cell(one.tokens_per_s, ".1f") for one in runs)))
    shares = [(None, *(one.parts[kind] / one.wall if kind in one.parts else None for one in clocks)) for kind in kinds]
    title = "Time by kind of work, ms and share of the wall clock"
    return _Table(title, ("part", *(one.profile for one in runs)), rows, shares)


def _worker_table(runs: Sequence[ProfileBreakdown]) -> _Table:
    rows = []
    for one in runs:
        whole = one.breakdown
        for worker in whole.lanes:
            busy = whole.busy(worker)
            longest = sorted(whole.lanes[worker].items(), key=lambda item: -item[1])
            doing = ", ".join(f"{kind} {_ms(seconds)}" for kind, seconds in longest if kind != "wait")
            rows.append((one.profile, worker, _share(busy, whole.wall), _ms(whole.wall - busy), doing))
        together = whole.overlap
        hidden = ", ".join(f"{kind} {_ms(seconds)}" for kind, seconds in whole.hidden.items())
        rows.append((one.profile, "both at once", _share(together, whole.wall), "", f"hidden: {hidden}"))
    return _Table("Workers side by side, ms", ("profile", "worker", "busy", "idle", "at"), rows)


def _pass_table(runs: Sequence[ProfileBreakdown]) -> _Table:
    def times(of: Sequence[Mapping[K, float]], key: K) -> list[str]:
        return [_ms(one[key]) if key in one else "-" for one in of]

    target = [one.passes.target for one in runs if one.passes is not None]
    draft = [one.passes.draft for one in runs if one.passes is not None]
    rows = [
        *((f"T_p({n})", *times(target, n)) for n in ROWS_SHOWN),
        *((f"T_q({alpha:g})", *times(draft, alpha)) for alpha in sorted({alpha for one in draft for alpha in one})),
        ("alpha", *(f"{one.alpha:g}" if one.c else "-" for one in runs)),
        ("c = T_p(1) / T_q(alpha)", *(cell(one.c, ".1f") for one in runs)),
        ("recommended gamma", *(cell(one.gamma, "d") for one in runs)),
    ]
    return _Table("Single passes on the clip's own caches, ms", ("pass", *(one.profile for one in runs)), rows)


def _notes(report: ProfileReport) -> list[str]:
    notes = [
        "Parts add up to the wall clock (file opened to last token); other: what no span covers. Each second counts "
        "once, for the innermost work.",
    ]
    if any(one.breakdown.overlap > 0 for one in report.runs):
        notes.insert(1, "Where both workers are at work the time is the target's; the draft's is hidden under it.")
    if any(one.passes for one in report.runs):
        notes.append("T_q depends on how many tokens are kept, not on which: they are evenly spaced here.")
    return notes


def render_terminal(report: ProfileReport, width: int, *, ascii_only: bool = False) -> Group:
    """Return tables with bars, for a terminal of ``width`` columns."""
    parts: list[RenderableType] = [Text(f"{report.clip}", style="bold")]
    for sheet in _sheets(report):
        shares = [*sheet.shares, *[(None,) * len(sheet.heads)] * (len(sheet.rows) - len(sheet.shares))]
        rows = [
            [_cell(text, share, ascii_only) for text, share in zip(row, bars, strict=True)]
            for row, bars in zip(sheet.rows, shares, strict=True)
        ]
        parts += [Text(""), aligned(sheet.heads, rows, width, title=sheet.title, bold="wall clock")]
    notes = [facts_line(report.machine), *(f"- {note}" for note in _notes(report))]
    parts += [Text(""), *(Text(note, style="dim") for note in notes)]
    return Group(*parts)


def _cell(text: str, share: float | None, ascii_only: bool) -> Text:
    if share is None:
        return Text(text)
    width = max(0, min(BAR, round(share * BAR)))
    filled, rest = ("#", ".") if ascii_only else ("█", "·")
    return Text.assemble((filled * width, "cyan"), (rest * (BAR - width), "dim"), f" {text}")


def markdown(report: ProfileReport) -> str:
    """Return the same tables as Markdown, without bars."""
    sheets = [f"**{sheet.title}**\n\n{table(sheet.heads, sheet.rows)}" for sheet in _sheets(report)]
    return "\n\n".join([*sheets, f"{facts_line(report.machine)}\n{bullets(_notes(report))}"])


def time_rows(report: ProfileReport) -> list[tuple[str, str, float]]:
    """Return (profile, part, seconds), with the wall clock as the part ``wall``."""
    return [
        (one.profile, part, seconds)
        for one in report.runs
        for part, seconds in (*one.breakdown.parts.items(), ("wall", one.breakdown.wall))
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}" if seconds < 10 else f"{seconds * 1000:.0f}"


def _share(seconds: float | None, wall: float) -> str:
    return "-" if seconds is None else f"{_ms(seconds)} {seconds / wall:.1%}"
