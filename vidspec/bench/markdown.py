"""The table of a bench as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from vidspec.bench.interleaved import Row

__all__ = ["heading", "markdown", "table"]


def markdown(rows: Sequence[Row], baseline: str, limit: Callable[[float], float]) -> str:
    """One line for each row; the share of what a pruned target reads, and of its tokens that it would have written
    unpruned, where there is such a row.

    Args:
        rows: as ``summary`` gives them.
        baseline: the name of the first.
        limit: how many plain passes a second the memory bandwidth allows over a cache of so many entries.
    """
    header = (
        f"{heading(row.also for row in rows)} | "
        f"same tokens as {baseline} | tau | tokens / target pass | run length | acceptance | "
        "visual tokens kept | tokens/s | share of limit | first token | decode | place | speed model | end to end"
    ).split(" | ")
    lossy = any(row.retention is not None or row.accepted_by_target is not None for row in rows)
    if lossy:
        header += ["target reads", "accepted by target"]
    lines = []
    for row in rows:
        passes = row.tokens_per_s / (row.tokens_per_target_pass or 1.0)
        share = "-" if row.context is None else f"{passes / limit(row.context):.0%}"
        lines.append(
            [
                row.names,
                row.equality,
                _number(row.tau),
                _number(row.tokens_per_target_pass),
                _number(row.run_length),
                _percent(row.acceptance_rate),
                _percent(row.kept),
                f"{row.tokens_per_s:.0f} ({row.rate_spread[0]:.0f}-{row.rate_spread[1]:.0f})",
                share,
                _ratio(row.first),
                _ratio(row.decode),
                str(row.place),
                _number(row.model),
                _ratio(row.end_to_end),
                *((_tenths(row.retention), _tenths(row.accepted_by_target)) if lossy else ()),
            ]
        )
    return table(header, lines)


def heading(others: Iterable[Sequence[str]]) -> str:
    """Over names of methods; it explains those that have others."""
    return "method (= its other names: measured once)" if any(others) else "method"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; of each row as many cells as the header has."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _tenths(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _ratio(values: tuple[float, float, float]) -> str:
    return f"{values[0]:.2f}x ({values[1]:.2f}-{values[2]:.2f})"
