"""The terminal that a panel is drawn for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class PanelScreen:
    """Size and abilities of a terminal.

    Attributes:
        width, height: columns, and lines; a panel without a height is as high as its contents.
        ascii_only: no block characters, and so no tiles.
        coloured: at least 256 colours; without them there are no tiles.
        verbose: use the names of docs/research/metrics.md for figures, and show more of them.
    """

    width: int = 80
    height: int | None = None
    ascii_only: bool = False
    coloured: bool = True
    verbose: bool = False

    @classmethod
    def of(cls, console: Console, *, verbose: bool) -> PanelScreen:
        """Return the screen of a console as it is now."""
        ascii_only = not console.encoding.lower().startswith("utf")
        coloured = not console.no_color and console.color_system in ("256", "truecolor")
        return cls(*console.size, ascii_only, coloured, verbose)
