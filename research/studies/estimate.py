"""Compare the estimated decode speed-up with the measured one: ``research.studies.estimate [PROFILE ...]``.

Draws clips as ``research.draw`` does. Each is captioned, which gives the estimate, and decoded plainly before and
after. The measured speed-up is the median over repeats of the ratios of rates to the plain decoding after it. The
control are the ratios to the plain decoding before it, which bound the accuracy of any estimate. Prints Markdown: by
profile the number of clips with an estimate, their medians, the largest difference, the share within 10%, and both for
the control. Meant for an idle machine; with ``--cold`` each estimate is from a separate process, the command line's.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from research.world.samples import draw
from vidspec.bench.tables import table
from vidspec.captioner import Captioner
from vidspec.events.compare import speed_against

__all__ = ["Measured", "lines"]

PROFILES = "vanilla-sd-auto sd-adaptive-tree hybrid vanilla-sd specvlm tabed-mt ngram suffix eagle3 parallelvlm lvspec"
NEAR = 0.10
HEADER = (
    "profile",
    "estimates",
    "measured",
    "estimated",
    "median difference",
    "largest",
    "within 10%",
    "control: largest",
    "within 10%",
)


class Measured(NamedTuple):
    """Decode speed-ups of one clip: estimated, measured by plain decoding after it, and by that before it."""

    estimated: float
    measured: float
    control: float


def measure(captioner: Captioner, clip: Path, repeats: int) -> Measured | None:
    """Return a clip's figures; None where it has no estimate."""
    found = []
    for _ in range(repeats):
        captioner.client.setup.forget()  # or the clip's own text would be the draft
        before, method, after = (captioner.caption(clip, plain=alone) for alone in (True, False, True))
        estimated = method.speed.get("estimate")
        measured, control = (speed_against(method, plain)["decode"] for plain in (after, before))
        if estimated and measured and control:
            found.append(Measured(estimated, measured, control))
    if not found:
        return None
    return Measured(*(median(column) for column in zip(*found, strict=True)))


def cold_estimate(profile: str, pair: str, clip: Path) -> float | None:
    """Return the estimate of the command line in a new process."""
    command = [sys.executable, "-m", "vidspec", "caption", str(clip), "--profile", profile, "--pair", pair]
    done = subprocess.run([*command, "--format", "json"], check=True, capture_output=True, text=True)
    estimate: float | None = json.loads(done.stdout)["speed"]["estimate"]
    return estimate


def lines(by_profile: Iterable[tuple[str, Sequence[Measured | None]]]) -> list[list[str]]:
    """Return the rows of the table."""
    rows = []
    for name, each in by_profile:
        found = [one for one in each if one is not None]
        shown = f"{len(found)}/{len(each)}"
        if not found:
            rows.append([name, shown, *["-"] * (len(HEADER) - 2)])
            continue
        off = [one.estimated / one.measured - 1 for one in found]
        noise = [one.control / one.measured - 1 for one in found]
        middle = [f"{median(column):.2f}x" for column in ([o.measured for o in found], [o.estimated for o in found])]
        judged = [f"{part:+.0%}" for part in (median(off), max(off, key=abs))]
        rows.append([name, shown, *middle, *judged, _near(off), f"{max(noise, key=abs):+.0%}", _near(noise)])
    return rows


def _near(differences: Sequence[float]) -> str:
    return f"{sum(abs(one) <= NEAR for one in differences)}/{len(differences)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("profiles", nargs="*", default=PROFILES.split())
    parser.add_argument("--pair", default="embedded")
    parser.add_argument("--clips", type=int, default=3)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="take the estimate of a process of its own for each clip")
    asked = parser.parse_args()
    found: list[tuple[str, list[Measured | None]]] = []
    with tempfile.TemporaryDirectory() as folder:
        clips = draw(Path(folder), asked.clips, asked.seed)
        for name in asked.profiles:
            with Captioner.from_profile(name, overrides={"models.pair": asked.pair}) as captioner:
                captioner.client.estimates_speedup = True
                captioner.client.warm_up()
                gc.freeze()  # garbage collections of loaded objects are no part of decoding
                each = [measure(captioner, clip, asked.repeats) for clip in clips]
                for at, clip in enumerate(clips) if asked.cold else ():
                    own, warm = cold_estimate(name, asked.pair, clip), each[at]
                    each[at] = warm._replace(estimated=own) if warm and own else None
            found.append((name, each))
    print(table(HEADER, lines(found)))


if __name__ == "__main__":
    main()
