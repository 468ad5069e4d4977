"""The table of a bench as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vidspec.bench.interleaved import Row
from vidspec.events.markdown import cell, heading, left_out, spread, table

__all__ = ["markdown"]


def markdown(
    rows: Sequence[Row],
    baseline: str,
    limit: Callable[[float], float],
    left: Mapping[str, str] | None = None,
) -> str:
    """One line for each row; how long texts are, where some are not the baseline's; the share of what a pruned target
    reads, and of its tokens that it would have written unpruned, where there is such a row.

    Args:
        rows: as ``summary`` gives them.
        baseline: the name of the first.
        limit: how many plain passes a second the memory bandwidth allows over a cache of so many entries.
        left: by name why there is nothing of it; each has a line that says so.
    """
    header = (
        f"{heading(row.also for row in rows)} | "
        f"same tokens as {baseline} | tau | tokens / target pass | run length | acceptance | "
        "visual tokens kept | tokens/s | share of limit | first token | decode | place | speed model"
    ).split(" | ")
    differ = any(row.equal != row.clips for row in rows)
    header += ["mean tokens", "end to end at the baseline's length"] if differ else ["end to end"]
    lossy = any(row.retention is not None or row.accepted_by_target is not None for row in rows)
    if lossy:
        header += ["target reads", "accepted by target"]
    lines = []
    for row in rows:
        passes = row.tokens_per_s / (row.tokens_per_target_pass or 1.0)
        lines.append(
            [
                row.names,
                row.equality,
                cell(row.tau),
                cell(row.tokens_per_target_pass),
                cell(row.run_length),
                cell(row.acceptance_rate, ".0%"),
                cell(row.kept, ".0%"),
                spread((row.tokens_per_s, *row.rate_spread), ".0f", ""),
                cell(None if row.context is None else passes / limit(row.context), ".0%"),
                spread(row.first),
                spread(row.decode),
                str(row.place),
                cell(row.model),
                *([cell(row.tokens, ".1f")] if differ else ()),
                spread(row.end_to_end),
                *((cell(row.retention, ".1%"), cell(row.accepted_by_target, ".1%")) if lossy else ()),
            ]
        )
    return table(header, [*lines, *left_out(left or {}, len(header))])
