"""Call path of a token through the code: ``python -m research.studies.token_path [--profile NAME]``.

A built-in pair captions a clip while every call inside ``vidspec`` is noted. Printed is each function that runs between
the end of a pass of the target and the moment when the panel has its tokens, in the order of first calls, of the
verification with the median number of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import vidspec
from vidspec import Captioner
from vidspec.display.state import PanelState
from vidspec.embedded.samples import shipped
from vidspec.engine.forward import Engine
from vidspec.events.events import Round

ROOT = Path(vidspec.__file__).parent
#: Files and functions that only measure pass times.
MEASURING = (
    "draft_length/",
    "events/trace.py",
    "decoding/engine_thread.py: EngineThread._record_pass",
    "decoding/tickets.py: Caller.add_pass",
)
#: Parts of functions.
INNER = ("<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<module>")


class Recorder:
    """Records the package's functions entered or resumed since the last target pass ended."""

    def __init__(self, target: object) -> None:
        self.target, self.ways = target, list[list[str]]()
        self._run = Engine.run.__wrapped__.__code__ if hasattr(Engine.run, "__wrapped__") else Engine.run.__code__
        self._seen: dict[CodeType, None] | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(str(ROOT)):
            return
        if event == "return" and code is self._run and frame.f_locals["self"].model is self.target:
            self._seen = {}
        elif event == "call" and self._seen is not None and code.co_name not in INNER:
            self._seen[code] = None

    def taken(self) -> None:
        """Called when the panel has the tokens."""
        if self._seen is not None:
            self.ways.append(
                [f"{Path(c.co_filename).relative_to(ROOT)}: {getattr(c, 'co_qualname', c.co_name)}" for c in self._seen]
            )
        self._seen = None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--profile", default="vanilla-sd")
    wanted = parser.parse_args()
    clip = str(shipped()[0])
    with Captioner.from_profile(wanted.profile, overrides={"models.threads": 1, "draft.gamma": 5}) as captioner:
        recorder, panel = Recorder(captioner.client.setup.target.model), PanelState(path=clip, profile=wanted.profile)
        sys.setprofile(recorder)
        try:
            for event in captioner.stream(clip):
                panel.apply(event)
                if isinstance(event, Round):
                    recorder.taken()
        finally:
            sys.setprofile(None)
    usual = statistics.median_low([len(way) for way in recorder.ways])
    way = next(way for way in recorder.ways if len(way) == usual)
    print("\n".join(way))
    measuring = sum(one.startswith(MEASURING) for one in way)
    files = len({one.partition(":")[0] for one in way})
    print(f"{usual} functions in {files} files, {measuring} of which only measure")


if __name__ == "__main__":
    main()
