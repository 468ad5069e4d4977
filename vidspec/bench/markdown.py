"""The table of a bench as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vidspec.bench.interleaved import Row

__all__ = ["markdown"]


def markdown(rows: Sequence[Row], baseline: str, limit: Callable[[float], float]) -> str:
    """One line for each row; the share of what a pruned target reads, and of its tokens that it would have written
    unpruned, where there is such a row.

    Args:
        rows: as ``summary`` gives them.
        baseline: the name of the first.
        limit: how many plain passes a second the memory bandwidth allows over a cache of so many entries.
    """
    lines = [
        f"| method | same tokens as {baseline} | tau | tokens / target pass | run length | acceptance | "
        "visual tokens kept | tokens/s | share of limit | first token | decode | place | speed model | end to end |",
        "|---" * 14 + "|",
    ]
    lossy = any(row.retention is not None or row.accepted_by_target is not None for row in rows)
    if lossy:
        lines = [lines[0] + " target reads | accepted by target |", lines[1] + "---|---|"]
    for row in rows:
        passes = row.tokens_per_s / (row.tokens_per_target_pass or 1.0)
        share = "-" if row.context is None else f"{passes / limit(row.context):.0%}"
        lines.append(
            f"| {row.names} | {row.equality} | {_number(row.tau)} | {_number(row.tokens_per_target_pass)} | "
            f"{_number(row.run_length)} | {_percent(row.acceptance_rate)} | {_percent(row.kept)} | "
            f"{row.tokens_per_s:.0f} ({row.rate_spread[0]:.0f}-{row.rate_spread[1]:.0f}) | {share} | "
            f"{_ratio(row.first)} | {_ratio(row.decode)} | {row.place} | {_number(row.model)} | "
            f"{_ratio(row.end_to_end)} |"
            + (f" {_tenths(row.retention)} | {_tenths(row.accepted_by_target)} |" if lossy else "")
        )
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _tenths(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _ratio(values: tuple[float, float, float]) -> str:
    return f"{values[0]:.2f}x ({values[1]:.2f}-{values[2]:.2f})"
