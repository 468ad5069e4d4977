"""Draws the README's terminal picture from a real run: ``python docs/draw_panel.py CLIP OUT.svg``.

The panel is the one ``vidspec caption`` shows on a terminal, in the moment the caption is complete.
"""

from __future__ import annotations

import io
import sys

from rich.console import Console

from vidspec import Captioner
from vidspec.live.panel import render
from vidspec.live.state import PanelState


def main(clip: str, out: str) -> None:
    with Captioner.from_profile("sd-attention") as captioner:
        captioner.warm_up()
        state = PanelState(path=clip, profile=captioner.profile.name)
        for event in captioner.stream(clip):
            state.apply(event)
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(f"$ vidspec caption {clip} --profile sd-attention", highlight=False)
    console.print(render(state, width=100))
    console.save_svg(out, title="vidspec")


if __name__ == "__main__":
    main(*sys.argv[1:])
