"""Clips as decoded frames in one file, for machines that cannot decode video."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vidspec.embedded.samples import shipped
from vidspec.events.events import SourceFacts
from vidspec.video import Clip

#: Of each clip, as the built-in pairs' profiles take them.
FRAMES = 32
#: The environment variable with the path of a file of frames.
VARIABLE = "VIDSPEC_GPU_FRAMES"


def save(path: Path, clips: Mapping[str, Clip]) -> None:
    """Write clips, without their sound, to a compressed ``.npz``."""
    arrays: dict[str, Any] = {}  # as numpy's own annotations want them
    for name, clip in clips.items():
        arrays[f"{name}/frames"], arrays[f"{name}/timestamps"] = clip.frames, clip.timestamps
        arrays[f"{name}/facts"] = np.array(json.dumps(asdict(clip.facts)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load(path: Path) -> dict[str, Clip]:
    """Load the clips that :func:`save` wrote, by name."""
    with np.load(path) as arrays:
        names = dict.fromkeys(key.rpartition("/")[0] for key in arrays.files)
        found = {}
        for name in names:
            facts = json.loads(str(arrays[f"{name}/facts"]))
            facts["damage"] = tuple(facts["damage"])
            found[name] = Clip(arrays[f"{name}/frames"], arrays[f"{name}/timestamps"], SourceFacts(**facts))
    return found


def drawn(count: int, seed: int = 0) -> dict[str, Clip]:
    """Return the shipped clips, and drawn ones of the built-in models' world up to ``count``."""
    from research.world.samples import draw
    from vidspec import video

    found = {path.name: video.read(path, frames=FRAMES) for path in shipped()[:count]}
    if count > len(found):
        with tempfile.TemporaryDirectory() as folder:
            paths = draw(Path(folder), count - len(found), seed)
            found |= {f"drawn-{path.name}": video.read(path, frames=FRAMES) for path in paths}
    return found


def decoded(count: int) -> dict[str, Clip]:
    """Return ``count`` clips: from the file that :data:`VARIABLE` names, else decoded here."""
    named = os.environ.get(VARIABLE)
    return dict(list(load(Path(named)).items())[:count]) if named else drawn(count)
