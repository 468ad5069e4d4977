"""Draw the README's terminal pictures from real runs: ``python -m research.pages.panel CLIP|FOLDER OUT.svg``.

The panel is the one ``vidspec caption`` shows on a terminal: of a clip in the moment its caption is complete, of a
folder in the first moment after half of its clips in which as many as ever are in flight and all of them are decoding.
Clips and folders are shown by their last name, so that no path of this machine is in a picture.
"""

from __future__ import annotations

import io
import sys
import time
from collections import deque
from pathlib import Path

from rich.console import Console, RenderableType

from vidspec import Captioner
from vidspec.display.overall import RECENT, render_run
from vidspec.display.panel import render_clip
from vidspec.display.state import PanelState
from vidspec.events.events import Finished, LoopLoad, Opened
from vidspec.events.tally import Tally
from vidspec.models.request import CaptionRequest

WIDTH, HEIGHT = 100, 34
BATCH = 8


def one(captioner: Captioner, clip: str) -> RenderableType:
    state = PanelState(path=Path(clip).name, profile=captioner.profile.name)
    captioner.estimates_speedup = True
    for event in captioner.stream(clip):
        state.apply(event)
    return render_clip(state, width=WIDTH)


def many(captioner: Captioner, folder: str) -> RenderableType:
    paths = sorted(Path(folder).glob("*.mp4"))
    tally, states, loads = Tally(total=len(paths)), dict[int, PanelState](), deque[LoopLoad](maxlen=RECENT)
    for key, said in captioner.serve(Read(captioner, paths), batch=BATCH):
        if isinstance(said, LoopLoad):
            loads.append(said)
            continue
        if isinstance(said, Exception):
            raise said
        assert isinstance(key, int)  # as Read numbers them
        if isinstance(said, Opened):
            states[key] = PanelState(path=Path(said.path).name, profile=captioner.profile.name, began=time.monotonic())
        states[key].apply(said)
        if isinstance(said, Finished):
            del states[key]
            tally.add(key, said.caption)
        decoding = len(states) == BATCH and all(len(state.rounds) > 1 for state in states.values())
        if decoding and 2 * tally.done >= tally.total:
            shown = list(states.values())
            return render_run(
                tally, shown, loads, now=time.monotonic(), width=WIDTH, height=HEIGHT, max_in_flight=BATCH
            )
    raise SystemExit(f"{folder}: too few clips for {BATCH} at once")


class Read:
    """Clips of a folder, whose frames are read on admission."""

    def __init__(self, captioner: Captioner, paths: list[Path]) -> None:
        self.captioner, self.left = captioner, list(enumerate(map(str, paths)))

    @property
    def over(self) -> bool:
        return not self.left

    def take(self) -> CaptionRequest | None:
        if not self.left:
            return None
        key, path = self.left.pop(0)
        return CaptionRequest(path, self.captioner.read(path), key=key)


def shown_name(source: str) -> str:
    """Return the last name of a clip or a folder, the folder's with a slash."""
    path = Path(source).resolve()
    return f"{path.name}/" if path.is_dir() else path.name


def main(source: str, out: str) -> None:
    folder = Path(source).is_dir()
    with Captioner.from_profile("sd-attention-chain") as captioner:
        captioner.warm_up()
        drawn = (many if folder else one)(captioner, source)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    asked = " --format jsonl -o captions.jsonl" if folder else ""
    console.print(f"$ vidspec caption {shown_name(source)}{asked} --profile sd-attention-chain", highlight=False)
    console.print(drawn)
    console.save_svg(out, title="vidspec")


if __name__ == "__main__":
    main(*sys.argv[1:])
