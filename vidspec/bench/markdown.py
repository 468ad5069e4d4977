"""The table of a bench as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vidspec.bench.interleaved import Row

__all__ = ["markdown"]


def markdown(rows: Sequence[Row], baseline: str, limit: Callable[[float], float]) -> str:
    """One line for each row.

    Args:
        rows: as ``summary`` gives them.
        baseline: the name of the first.
        limit: how many plain passes a second the memory bandwidth allows over a cache of so many entries.
    """
    lines = [
        f"| method | same tokens as {baseline} | tau | tokens / target pass | run length | acceptance | "
        "visual tokens kept | tokens/s | share of limit | first token | decode | speed model | end to end |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        passes = row.tokens_per_s / (row.tokens_per_target_pass or 1.0)
        share = "-" if row.context is None else f"{passes / limit(row.context):.0%}"
        lines.append(
            f"| {row.name} | {row.equality} | {_number(row.tau)} | {_number(row.tokens_per_target_pass)} | "
            f"{_number(row.run_length)} | {_percent(row.acceptance_rate)} | {_percent(row.kept)} | "
            f"{row.tokens_per_s:.0f} ({row.rate_spread[0]:.0f}-{row.rate_spread[1]:.0f}) | {share} | "
            f"{_ratio(row.first)} | {_ratio(row.decode)} | {_number(row.model)} | {_ratio(row.end_to_end)} |"
        )
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _ratio(values: tuple[float, float, float]) -> str:
    return f"{values[0]:.2f}x ({values[1]:.2f}-{values[2]:.2f})"
