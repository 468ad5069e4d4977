"""Drawn scenes as mp4 clips with their ground truth.

``python -m research.world.samples`` draws the package's sample clips again.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from research.world.captions import caption
from research.world.drawing import frames
from research.world.scene import Scene, draw_scene
from research.world.scoring import Statement, truth
from vidspec.embedded.samples import CLIPS, TRUTH
from vidspec.errors import OutputError, UsageError

HEIGHT, WIDTH, FPS = 240, 320, 15
SECONDS = (8, 15)  # the shortest and the longest clip
#: Scenes are drawn from streams of random numbers; the training stages' streams have the seeds 1, 2 and 3.
HELD_OUT_SEED = 20_000_000

#: The shipped clips: name, seed and number of objects. Together they show all patterns and most motions.
SHIPPED = (
    ("one-object", 533, 1),
    ("two-objects", 11, 2),
    ("three-objects", 21, 3),
    ("coming-and-going", 1, 3),
)


@dataclass(frozen=True)
class Sample:
    """A clip to draw: a scene, its number of frames, and one right caption."""

    seed: int
    scene: Scene
    frames: int
    caption: str

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.frames / FPS

    def record(self, file: str) -> dict[str, Any]:
        """Return the clip's entry in ``truth.json``."""
        facts = asdict(truth(self.scene))
        return {"file": file, "seed": self.seed, "duration": self.duration, "facts": facts, "caption": self.caption}


def draw_sample(seed: int, count: int | None = None) -> Sample:
    """Return the sample of ``seed``, with ``count`` objects (1 to 3, drawn too, if None)."""
    rng = random.Random(seed)
    scene = draw_scene(rng, count=count)
    length = rng.randint(SECONDS[0] * FPS, SECONDS[1] * FPS)
    return Sample(seed, scene, length, caption(scene, rng))


def draw(out: Path, count: int, seed: int) -> list[Path]:
    """Draw ``count`` clips ``clip-0000.mp4``, ... and their ``truth.json`` into the folder ``out``, made if absent.

    The same seed draws the same clips, and more of them begin with the fewer.

    Returns:
        the clips' paths.

    Raises:
        OutputError: the folder cannot be written, or holds one of these files already.
    """
    rng = random.Random(seed)
    drawn = {f"clip-{number:04d}.mp4": draw_sample(rng.randrange(2**31)) for number in range(count)}
    taken = next((name for name in (TRUTH, *drawn) if (out / name).exists()), None)
    if taken is not None:
        raise OutputError(f"{out / taken}: exists already, and is left as it is", hint="name another folder")
    return _write(out, drawn)


def ship(folder: Path = CLIPS) -> list[Path]:
    """Write the sample clips and their ``truth.json``; earlier ones are replaced."""
    return _write(folder, {f"{name}.mp4": draw_sample(seed, count) for name, seed, count in SHIPPED})


def read_truth(folder: Path) -> dict[str, tuple[int, Statement]]:
    """Return seed and facts of the clips in a folder by file name, from its ``truth.json``; empty if it has none.

    Raises:
        UsageError: the file is not one that this module writes.
    """
    path = folder / TRUTH
    if not path.is_file():
        return {}
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
        return {one["file"]: (one["seed"], Statement(**one["facts"])) for one in records}
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{path}: is not a truth.json of `python -m research.draw`", hint="rename it if it is something else"
        ) from None


def _write(out: Path, drawn: dict[str, Sample]) -> list[Path]:
    """Write the clips, then ``truth.json``, which marks a complete set."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, sample in drawn.items():
            _encode(out / name, sample)
        records = [sample.record(name) for name, sample in drawn.items()]
        (out / TRUTH).write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    except OSError as error:  # PyAV's errors of the file system are OSErrors too
        raise OutputError(f"{out}: cannot be written: {error.strerror or error}") from None
    return [out / name for name in drawn]


def _encode(path: Path, sample: Sample) -> None:
    """Write ``sample`` as H.264 in mp4: frame k of n shows the scene at time k / (n - 1)."""
    import av

    times = [k / (sample.frames - 1) for k in range(sample.frames)]
    with av.open(str(path), "w") as container:
        # One thread, because the bytes that x264 writes depend on how many it uses.
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "23", "threads": "1"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for first in range(0, sample.frames, FPS):  # a second at a time: drawing takes 12 bytes a pixel
            for picture in frames(sample.scene, times[first : first + FPS], HEIGHT, WIDTH):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


if __name__ == "__main__":
    for path in ship():
        print(path)
