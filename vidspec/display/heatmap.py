"""Draws how many visual tokens the draft sees, of each frame and at each place in it: fuller blocks where more."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from vidspec.display.cells import cells_of
from vidspec.events.events import Prefilled

__all__ = ["frame_map", "heatmap"]

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
    for index, share in enumerate(shares):
        if index % max(1, width) == 0:
            text.append("\n")
        _block(text, share, top, ascii_only)
    return text


def frame_map(seen: Prefilled, width: int, *, ascii_only: bool = False) -> Text:
    """A frame as rows of blocks: how often the draft sees each place of it, over all frames.

    Rows that do not fit into ``MAX_ROWS`` lines share them, as columns that do not fit into ``width`` do.

    Args:
        seen: what the draft sees; its grid is not empty.
        width: columns to draw in.
        ascii_only: for terminals without block characters.
    """
    _, rows, columns = seen.grid
    shares = cells_of(seen).place_shares(-(-rows // MAX_ROWS), -(-columns // max(1, width)))
    top = max(map(max, shares))
    head = f"by place in the frame, {rows} x {columns} tokens" + (f", full block {top:.0%}" if top else "")
    text = Text(head, style="dim")
    for line in shares:
        text.append("\n")
        for share in line:
            _block(text, share, top, ascii_only)
    return text


def _block(text: Text, share: float, top: float, ascii_only: bool) -> None:
    symbols = ASCII_BLOCKS if ascii_only else BLOCKS
    level = 0 if not share else max(1, round(share / top * (len(symbols) - 1)))
    text.append(symbols[level], style=f"not dim {COLOURS[level]}")


def _share(kept: Sequence[int], of: Sequence[int]) -> float:
    return sum(kept) / sum(of) if sum(of) else 0.0
