"""A captioner without models: its clips are what their names say. For tests of the command, the batch and the panel.

A prompt without a video is answered by :data:`SHORT`, and fails for ``wordy.mp4``.
``good.mp4`` is captioned; ``missing.mp4`` fails; ``bug.mp4`` raises a TypeError; ``stop.mp4`` is interrupted;
``differs.mp4`` differs from plain decoding; ``lost.mp4`` loses its device; ``dies.mp4`` ends the process, and
``dies-once.mp4`` the first time only. Several clips at once take turns, an event each.
"""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Iterator
from dataclasses import replace
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.config.schema import Profile
from vidspec.decoding.dialogue import Dialogue
from vidspec.decoding.engine_client import ClipInputs, EngineClient
from vidspec.draft_length.costs import PassCosts
from vidspec.errors import DeviceError, GenerationError, ModelError, VideoError
from vidspec.events.events import Event, Finished, InputsReleased, LoopLoad, Opened, Prefilled, Round
from vidspec.events.record import Caption
from vidspec.events.wake import WakeEvent
from vidspec.models.request import CaptionRequest
from vidspec.models.vision_ahead import VisionAhead
from vidspec.runs.reader import ClipReader
from vidspec.video.base import Clip
from vidspec.video.cutting import CutKind

TEXT = "A red circle\nmoves left."
SHORT = "A circle moves."
IDS = [7, 1, 2, 3, 9]
#: A program that is ``vidspec`` over this captioner, also in its replicas.
PROGRAM = """#!{python}
import sys
from types import ModuleType
from tests.fake_captioner import FakeCaptioner
from vidspec.runs.executors.base import CaptionerFactory
module = ModuleType("vidspec.captioner"); module.Captioner = FakeCaptioner
sys.modules["vidspec.captioner"] = module
CaptionerFactory.__init__.__defaults__ = ("tests.fake_captioner:FakeCaptioner",)
from vidspec.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""
#: Clips at once where nobody says how many.
MOST = 4


def record(path: str = "good.mp4", **changes: object) -> Caption:
    fields: dict[str, object] = {
        "path": path,
        "caption": TEXT,
        "token_ids": list(IDS),
        "ended": "eos",
        "lossless": True,
        "profile": "vanilla-sd",
        "seed": 7,
        "models": {
            "target": "big",
            "draft": "small",
            "family": "fake",
            "dtype": "float32",
            "weights": "float32",
            "device": "cpu",
            "decoder": "fused",
        },
        "video": {"frames": 2, "timestamps": [0.0, 0.5], "codec": "h264"},
        "counters": {
            "target_forwards": 2,
            "draft_forwards": 4,
            "drafted": 4,
            "accepted": 3,
            "loose": 0,
            "corrections": 1,
            "bonus": 0,
            "emitted": 5,
            "visual_tokens": 8,
            "visual_tokens_kept": 3,
            "audio_tokens": 0,
            "state_bytes": 0,
            "accepted_lengths": [3],
        },
        "lengths": {"tau": 3.0, "tokens_per_target_pass": 4.0, "run_length": None, "acceptance_rate": 0.75},
        "timings": {"decode_video": 0.0, "time_to_first_token": 0.5, "decode": 1.0, "end_to_end": 1.5},
        "speed": {"tokens_per_s": 4.0, "estimate": 2.0},
        "kept_per_frame": [1, 2],
    }
    return Caption(**(fields | changes))  # type: ignore[arg-type]


def events(path: str = "good.mp4") -> list[Event]:
    facts = SimpleNamespace(path=path)
    return [
        Opened(path, facts, 2, (0.0, 0.5), bool(record(path).demo)),  # type: ignore[arg-type]
        Prefilled(20, 8, (0, 4, 5), (1, 2), (4, 4), 0.5),
        Round((7,), ("target",), 0, 0, 0.0, texts=("A",)),
        Round(
            (1, 2, 3, 9),
            ("draft", "draft", "draft", "correction"),
            4,
            3,
            1.0,
            0.4,
            0.6,
            (" red", " circle", "\nmoves", " left."),
        ),
        Finished(record(path)),
    ]


def stream_events(path: str) -> Iterator[Event]:
    """The events of a clip and, after its first round, that its frames are released."""
    released = False
    for event in events(path):
        yield event
        if isinstance(event, Round) and not released:
            released = True
            yield InputsReleased(0.6)


def question(kind: str, index: int, prompt: str) -> dict[str, object]:
    """Return a record's entry on one of several questions."""
    counts = {"reused": 0, "reused_by_draft": None, "saved_s": 0.0}
    return {"kind": kind, "index": index, "prompt": prompt, **counts}


def asked(one: Any) -> dict[str, object]:
    """Return the options of a request that differ from the profile."""
    keys = ("prompt", "clip", "earlier")
    return {key: value for key in keys if (value := getattr(one, key, None)) is not None and value != ()}


_MODEL = SimpleNamespace(
    name="big",
    family="fake",
    dtype=torch.float32,
    device=torch.device("cpu"),
    decoder=SimpleNamespace(name="fused", why="a test"),
    matrices=(),
    notes=(),
    model=SimpleNamespace(generation_config=None),
    template=SimpleNamespace(origin=None),
)
#: Parts of a profile, as far as notes and the summary of loaded models name them.
PARTS: dict[str, Any] = {
    "target": SimpleNamespace(model=_MODEL),
    "draft": SimpleNamespace(model=_MODEL),
    "head": None,
    "slot": None,
    "drafter": None,
    "pruner": None,
    "costs": PassCosts(),
}


def profile_of(prompt: str = "Describe.", name: str = "vanilla-sd", **video: object) -> Profile:
    """Return a profile with this prompt and these keys of ``video``."""
    return profiles.parse({"name": name, "generate": {"prompt": prompt}, "video": video})


class FakeVision(VisionAhead):
    def __init__(self) -> None:
        self.started = False

    def start_worker(self) -> None:
        self.started = True

    def prepare(self, clip: Clip | None) -> int:
        return 0


class FakeInputs(ClipInputs):
    max_sound_s = gpu = None

    def __init__(self) -> None:
        self.vision = FakeVision()

    def refuse(
        self, path: str, prompt: str | None, frames: int, height: int, width: int, generate: object = None
    ) -> None:
        """Accept any number of frames."""


class FakeClient(EngineClient):
    """Serves clips by the streams of a fake captioner."""

    warm = False
    most = 0

    def __init__(self, captioner: FakeCaptioner, profile: Profile) -> None:
        self._captioner, self.profile, self.inputs = captioner, profile, FakeInputs()

    @property
    def setup(self) -> Any:
        return SimpleNamespace(profile=self.profile, **PARTS)

    def warm_up(self) -> None:
        self.warm = True

    def serve(
        self, arrivals: Any, *, batch: int | None = None, wake: WakeEvent | None = None
    ) -> Iterator[tuple[Hashable, Event | LoopLoad | Exception]]:
        flights: dict[Hashable, tuple[Iterator[Event], float]] = {}
        while True:
            over = arrivals.over
            while len(flights) < (batch or MOST) and (one := arrivals.take()) is not None:
                until = float("inf") if one.timeout is None else time.monotonic() + one.timeout - one.spent
                if one.text_only:
                    events = self._captioner._answer(one.path, one.prompt)
                else:
                    events = self._captioner.stream(one.path, start=one.start, end=one.end, **asked(one))
                flights[one.key] = iter(events), until
            self.most = max(self.most, len(flights))
            if not flights and over:
                return
            if not flights and wake is not None:
                wake.wait(1.0)
            for key, (events, until) in list(flights.items()):
                try:
                    said: Event | Exception | None = next(events, None)
                except Exception as error:
                    said = error
                if time.monotonic() > until:
                    said = GenerationError("not captioned within the time", kind="timeout")
                if said is None or isinstance(said, Finished | Exception):
                    del flights[key]
                if said is not None:
                    yield key, said
            yield None, LoopLoad(len(flights), 0, 0, 0, 0, 0, 0, 0, batch or MOST, reading=0.25)


class FakeCaptioner(Captioner):
    made: ClassVar[list[FakeCaptioner]] = []
    load_error: BaseException | None = None

    def __init__(self, profile: Profile | None = None) -> None:
        profile = profile or profile_of()
        self.client = FakeClient(self, profile)
        self.calls: list[tuple[str, str, float | None, float | None]] = []
        self.asked: list[dict[str, object]] = []
        self.closed = False

    @classmethod
    def from_profile(cls, profile: Profile, *, overrides: object = None) -> FakeCaptioner:
        if cls.load_error is not None:
            raise cls.load_error
        made = cls(profile)
        cls.made.append(made)
        return made

    def stream(
        self, path: str, *, start: float | None = None, end: float | None = None, **more: object
    ) -> Iterator[Event]:
        self.asked.append(more)
        self.calls.append(("stream", path, start, end))
        kind = PurePath(path).stem
        if kind == "missing":
            raise VideoError(f"{path}: there is no such file", kind="missing", hint="check the path")
        if kind == "lost":
            raise DeviceError("the device is gone")
        if kind == "dies" or (kind == "dies-once" and not os.path.exists(path + ".died")):
            with open(path + ".died", "w"):
                os._exit(9)
        print("a library prints this")
        for event in stream_events(path):
            yield event
            if isinstance(event, Prefilled) and kind == "bug":
                raise TypeError("broken")
            if isinstance(event, Prefilled) and kind == "stop":
                raise KeyboardInterrupt

    def _answer(self, path: str, prompt: str) -> Iterator[Event]:
        self.asked.append({"prompt": prompt, "text_only": True})
        if PurePath(path).stem == "wordy":
            raise GenerationError(f"{path}: a prompt of 9 tokens is too long", kind="context", hint="fewer --frames")
        yield Finished(record(path, caption=SHORT, ended="length"))

    def dialogue(self, path: str, **asked_for: object) -> Dialogue:
        def stream(request: CaptionRequest) -> Iterator[Event]:
            turn = question("turn", len(request.earlier), request.prompt or "")
            for event in self.stream(request.path, **asked(request)):
                yield Finished(replace(event.caption, question=turn)) if isinstance(event, Finished) else event

        return Dialogue(stream, CaptionRequest(path))

    def caption(self, path: str, *, start: float | None = None, end: float | None = None, **more: object) -> Caption:
        assert more.pop("plain")
        self.calls.append(("plain", path, start, end))
        ids = [7, 1, 2, 4, 9] if PurePath(path).stem == "differs" else list(IDS)
        timings = {"time_to_first_token": 0.25, "decode": 3.0, "end_to_end": 3.0}
        return record(path, token_ids=ids, timings=timings, profile="ar", speed={"tokens_per_s": 4 / 3})

    def close(self) -> None:
        self.closed = True


class Refusing(FakeCaptioner):
    """A captioner whose models are missing."""

    @classmethod
    def from_profile(cls, profile: Profile, *, overrides: object = None) -> FakeCaptioner:
        raise ModelError("no such model")


class FakeReader(ClipReader):
    """Leaves the frames to the fake captioner, whose clips are no files; every clip has two segments."""

    def __init__(self, timeout: float | None = None, stall: float = 60.0) -> None:
        self.timeout, self.stall = timeout, stall

    def start(self) -> None:
        pass

    def read(self, path: str, start: object, end: object, video: object, check: object = None) -> None:
        return None

    def segments(self, path: str, segment: object, start: object, end: object) -> list[tuple[float, float]]:
        return [(0.0, 1.5), (1.5, 3.0)]

    def write_segment(self, path: str, start: float, end: float, out: str, *, allow_damaged: bool) -> CutKind:
        with open(out, "w") as file:
            file.write(f"{path} ")
            file.flush()
            file.write(f"{start} {end}")
        return "copied"

    def close(self) -> None:
        pass
