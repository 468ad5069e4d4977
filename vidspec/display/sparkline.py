"""Draws how the weights of an ensemble's contexts moved, window by window (TABED Fig. 3): one short line for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from vidspec.display.heatmap import ASCII_BLOCKS, BLOCKS

__all__ = ["sparkline", "weight_lines"]

LONGEST = 24


def sparkline(shares: Sequence[float], *, ascii_only: bool = False) -> str:
    """One symbol a share: a dot for 0, a full block for 1."""
    symbols = ASCII_BLOCKS if ascii_only else BLOCKS
    return "".join(symbols[round(min(1.0, max(0.0, share)) * (len(symbols) - 1))] for share in shares)


def weight_lines(weights: Mapping[str, Sequence[float]], width: int, *, ascii_only: bool = False) -> list[Text]:
    """Each context's name, its weights in the last windows and the newest as a number.

    Args:
        weights: by context, one per window.
        width: columns to draw in; longer histories lose their beginning.
        ascii_only: for terminals without block characters.
    """
    lines: list[Text] = []
    for context, history in weights.items():
        room = max(1, min(LONGEST, width - len(context) - 6))
        line = Text(f"{context} ", style="dim")
        line.append(sparkline(history[-room:], ascii_only=ascii_only), style="not dim cyan")
        lines.append(line.append(f" {history[-1]:.2f}" if history else ""))
    return lines
