"""Draws how many visual tokens of each frame the draft sees: one block a frame, fuller where more are kept."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

__all__ = ["heatmap"]

BLOCKS, ASCII_BLOCKS = "·▁▂▃▄▅▆▇█", ".:-=+*#%@"
#: From few tokens to many; read with or without colour, since the blocks say the same.
COLOURS = ("bright_black", "blue", "blue", "cyan", "cyan", "green", "green", "yellow", "bright_yellow")
MAX_ROWS = 4


def heatmap(kept: Sequence[int], of: Sequence[int], width: int, *, ascii_only: bool = False) -> Text:
    """Rows of at most ``width`` blocks under one line that says how to read them.

    Args:
        kept: visual tokens of each frame that the draft sees.
        of: visual tokens of each frame.
        width: columns to draw in.
        ascii_only: for terminals without block characters.

    More frames than fit into ``MAX_ROWS`` rows share blocks, and the heading says how many. A block is full for the
    greatest share among them, which the heading gives, and a dot where no token is kept.
    """
    per_block = -(-len(kept) // (max(1, width) * MAX_ROWS))
    shares = [
        _share(kept[start : start + per_block], of[start : start + per_block])
        for start in range(0, len(kept), max(1, per_block))
    ]
    top = max(shares, default=0.0)
    total = sum(of)
    head = f"draft sees {sum(kept)}/{total} visual tokens"
    if total:
        head += f" ({sum(kept) / total:.0%})"
    head += f", full block {top:.0%}" if top else ""
    head += f", {per_block} frames a block" if per_block > 1 else ""
    text = Text(head, style="dim")
    symbols = ASCII_BLOCKS if ascii_only else BLOCKS
    for index, share in enumerate(shares):
        if index % max(1, width) == 0:
            text.append("\n")
        level = 0 if not share else max(1, round(share / top * (len(symbols) - 1)))
        text.append(symbols[level], style=f"not dim {COLOURS[level]}")
    return text


def _share(kept: Sequence[int], of: Sequence[int]) -> float:
    return sum(kept) / sum(of) if sum(of) else 0.0
