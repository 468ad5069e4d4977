"""Draw the README's terminal pictures from real runs: ``python -m research.pages.panel CLIP|FOLDER OUT.svg [--still]``.

The panel is the one ``vidspec caption`` shows on a terminal, with the default profile of the built-in pairs: of a clip
from its frames to its caption, slowed down, or with ``--still`` when it is complete; of a folder in the first moment
after half of its clips in which as many as ever are in flight and all of them are decoding.
Clips and folders are shown by their last name, so that no path of this machine is in a picture.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path

from rich.text import Text

from research.pages.terminal_svg import Screen, draw_terminal, screen_of
from vidspec import Captioner
from vidspec.config.user_config import BUILT_IN_PROFILE
from vidspec.display.overall import RECENT, render_run
from vidspec.display.panel import PanelScreen, render_clip
from vidspec.display.state import PanelState
from vidspec.events.events import Finished, LoopLoad, Opened
from vidspec.events.tally import Tally
from vidspec.models.request import CaptionRequest

WIDTH, HEIGHT = 80, 24
FOLDER_WIDTH, FOLDER_HEIGHT = 100, 34
BATCH = 4
#: Screens of an animation while a text grows; seconds of each of them, and of the last.
STEPS, STEP_S, LAST_S = 7, 0.6, 4.0


def one(captioner: Captioner, clip: str, command: Text) -> list[Screen]:
    state = PanelState(path=Path(clip).name, profile=captioner.client.profile.name)
    captioner.client.estimates_speedup = True
    found = []
    for event in captioner.stream(clip):
        state.apply(event)
        last = isinstance(event, Finished)
        drawn = render_clip(state, PanelScreen(width=WIDTH, height=HEIGHT - 1))
        found.append(screen_of(WIDTH, command, drawn, seconds=LAST_S if last else STEP_S))
    step = max(1, len(found) // STEPS)
    return [*found[:2], *found[2:-1:step], found[-1]]


def many(captioner: Captioner, folder: str, command: Text) -> list[Screen]:
    paths = sorted(Path(folder).glob("*.mp4"))
    tally, states, loads = Tally(total=len(paths)), dict[int, PanelState](), deque[LoopLoad](maxlen=RECENT)
    for key, said in captioner.client.serve(Read(captioner, paths), batch=BATCH):
        if isinstance(said, LoopLoad):
            loads.append(said)
            continue
        if isinstance(said, Exception):
            raise said
        assert isinstance(key, int)  # as Read numbers them
        if isinstance(said, Opened):
            states[key] = PanelState(
                path=Path(said.path).name, profile=captioner.client.profile.name, began=time.monotonic()
            )
        states[key].apply(said)
        if isinstance(said, Finished):
            del states[key]
            tally.add(key, said.caption)
        decoding = len(states) == BATCH and all(len(state.rounds) > 1 for state in states.values())
        if decoding and 2 * tally.done >= tally.total:
            shown = list(states.values())
            panel = PanelScreen(FOLDER_WIDTH, FOLDER_HEIGHT)
            drawn = render_run(tally, shown, loads, screen=panel, now=time.monotonic(), max_in_flight=BATCH)
            return [screen_of(FOLDER_WIDTH, command, drawn)]
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
        return CaptionRequest(path, self.captioner.client.inputs.read(path), key=key)


def shown_name(source: str) -> str:
    """Return the last name of a clip or a folder, the folder's with a slash."""
    path = Path(source).resolve()
    return f"{path.name}/" if path.is_dir() else path.name


def main(source: str, out: str, *options: str) -> None:
    folder = Path(source).is_dir()
    asked = " --format jsonl -o captions.jsonl" if folder else ""
    command = Text(f"$ vidspec caption {shown_name(source)}{asked}")
    with Captioner.from_profile(BUILT_IN_PROFILE) as captioner:
        captioner.client.warm_up()
        screens = (many if folder else one)(captioner, source, command)
    shown = screens[-1:] if "--still" in options else screens
    width = FOLDER_WIDTH if folder else WIDTH
    title = f"The live panel of vidspec over {shown_name(source)}"
    Path(out).write_text(draw_terminal(shown, width, title), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
