"""The measuring loop of a bench: contenders in rotation on every clip (A B C, then B C A, ...), each warmed up."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch

from vidspec._version import __version__
from vidspec.bench.peers import Contender, PeerFailed
from vidspec.bench.turns import ContenderPool, rotate
from vidspec.captioner import Captioner
from vidspec.config.profiles import Profile
from vidspec.events.record import Caption

__all__ = ["ProfileContender", "machine", "run", "turn_label"]


@dataclass(frozen=True)
class ProfileContender(Contender):
    """A captioner with a profile; in a dialogue about each clip the last turn is measured.

    Attributes:
        captioner: the captioner.
        questions: the turns; the profile's own prompt if empty.
    """

    captioner: Captioner
    questions: Sequence[str] = ()

    @property
    def profile(self) -> Profile:
        """The captioner's profile."""
        return self.captioner.profile

    def caption(self, path: str | Path) -> Caption:
        if not self.questions:
            return self.captioner.caption(path)
        dialogue = self.captioner.dialogue(path)
        return [dialogue.ask(question) for question in self.questions][-1]

    def forget(self) -> None:
        self.captioner.forget()


def run(
    contenders: Mapping[str, Contender],
    clips: Sequence[Path],
    repeats: int,
    progress: Callable[[str], None] = lambda _: None,
    *,
    done: Mapping[tuple[str, str, int], Caption] | None = None,
    keep: Callable[[tuple[str, str, int], Caption], None] = lambda _key, _record: None,
    leave: Callable[[str, str], None] = lambda _name, _why: None,
) -> dict[str, dict[str, list[Caption]]]:
    """Caption every clip ``repeats`` times with every contender.

    Args:
        contenders: by name.
        clips: the clips, in order.
        repeats: of all clips.
        progress: called with the next step.
        done: records of an earlier run by contender, clip and repeat; not measured again.
        keep: called with every new record at once.
        leave: called with each peer that failed on a clip and was left out, and the reason.

    Returns:
        records by contender and clip, of the contenders that were not left out.
    """
    done = dict(done or {})
    pool = ContenderPool(contenders, lambda _, error: isinstance(error, PeerFailed), progress)
    for name, contender in contenders.items():  # warm-up: allocations, kernels, caches
        if all((name, str(clip), repeat) in done for clip in clips for repeat in range(repeats)):
            continue
        progress(f"warm-up {name}")
        pool.ask(name, partial(contender.caption, clips[0]))
        contender.forget()  # the caption of the warm-up would be reused as a draft
    records: dict[str, dict[str, list[Caption]]] = {name: {str(clip): [] for clip in clips} for name in contenders}
    for turn, (repeat, clip) in enumerate(product(range(repeats), clips)):
        progress(f"{repeat + 1}/{repeats} {clip.name}")
        if turn and clip == clips[0]:
            for contender in contenders.values():
                contender.forget()  # a clip's own caption would be reused as a draft
        for name in rotate(pool.names, turn):
            key = name, str(clip), repeat
            if key not in done:
                made = pool.ask(name, partial(contenders[name].caption, clip))
                if made is None:
                    continue
                done[key] = made
                keep(key, made)
            records[name][str(clip)].append(done[key])
    for name, why in pool.left.items():
        leave(name, why)
    return {name: records[name] for name in pool.names}


def turn_label(name: str, turn: int) -> str:
    """Return the name of a contender in a turn, from 0."""
    return f"{name}, turn {turn + 1}" if turn else name


def machine(device: torch.device) -> dict[str, object]:
    """Return facts about the machine and the libraries."""
    import transformers

    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = names[0] if names else processor
    return {
        "vidspec": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
    }
