"""One contender of ``vidspec bench throughput`` in a process of its own: a profile, or ``generate`` in batches.

``python -m vidspec.bench.throughput_worker JSON`` answers what a :class:`~vidspec.bench.answering.Worker` asks. Clips
go the whole way of ``vidspec caption``: read ahead, captioned, and each record kept in a file.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from vidspec import video
from vidspec.batch.bulk import Executor, Listener, execute
from vidspec.batch.feed import reader_count
from vidspec.batch.local import outcomes
from vidspec.batch.outputs import OneFile
from vidspec.batch.plan import plan
from vidspec.batch.reader import Reader
from vidspec.batch.records import Settings
from vidspec.batch.work import Entry, How, Outcome, Task
from vidspec.bench import labels
from vidspec.bench.answering import answer
from vidspec.bench.peers import Batched
from vidspec.bench.steady import Steady
from vidspec.captioner import Captioner
from vidspec.decoding.serving import Arrival
from vidspec.models import loading
from vidspec.profile import profiles
from vidspec.profile.profiles import Profile
from vidspec.telling.events import Finished, Load, Round
from vidspec.telling.observer import Observer
from vidspec.telling.tally import Tally
from vidspec.video import Clip

__all__ = ["Ours", "Theirs", "folder", "groups", "main"]


@dataclass
class Heard(Listener):
    """Token ids and failures by clip; ``rows`` of the target's windows, of all clips together."""

    ids: dict[str, list[int]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    rows: int = 0

    def outcome(self, outcome: Outcome, tally: Tally) -> None:
        if outcome.error is None:
            self.ids[outcome.work.path] = outcome.caption.token_ids
            counters = outcome.caption.counters
            self.rows += counters.get("drafted", 0) + counters.get("target_forwards", 0)
        else:
            self.errors[outcome.work.path] = str(outcome.error)


class Loads(Observer):
    """Target passes that the captioner has told of."""

    passes = 0

    def load(self, load: Load) -> None:
        self.passes = load.passes


@dataclass
class Ready:
    """Clips whose frames are in memory, as the captioner takes them."""

    waiting: deque[Arrival]

    @property
    def over(self) -> bool:
        return not self.waiting

    def take(self) -> Arrival | None:
        return self.waiting.popleft() if self.waiting else None


class Ours:
    """A profile, by the label of a bench."""

    def __init__(self, profile: Profile) -> None:
        self.captioner = Captioner.from_profile(profile)

    def run(self, clips: Sequence[str], batch: int) -> dict[str, Any]:
        """Caption a folder of clips; see :func:`folder`."""
        self.captioner.forget()  # a plan that was made before would cost nothing
        how = how_of(self.captioner.profile, len(clips), batch)
        loads, readers = Loads(), [Reader(how.timeout) for _ in range(reader_count(how, len(clips)))]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.read(clips[0], None, None, how.video)  # models are warm, and so are they
        told = folder(
            lambda tasks: outcomes(self.captioner, tasks, how, loads, readers), clips, self.captioner.profile, how
        )
        rows = told["rows"] / loads.passes if loads.passes else None  # prompts left out
        return {**told, "rows": rows, "device_bytes": device_bytes()}

    def decode(self, clips: Sequence[str], batch: int) -> dict[str, float]:
        """Tokens and seconds of decoding alone; see :class:`~vidspec.bench.steady.Steady`."""
        found = []
        for some in groups(clips, batch):
            read = [(path, self.captioner.read(path)) for path in some]
            arrivals = Ready(deque(Arrival(path, path, {"clip": clip}) for path, clip in read))
            counted = Steady(len(some))
            for key, event in self.captioner.serve(arrivals, batch=batch):
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, Round):
                    counted.emitted(time.perf_counter(), key, len(event.token_ids))
                elif isinstance(event, Finished):
                    counted.finished(time.perf_counter())
            found.append(counted)
        return Steady.together(found)

    def plain(self, clips: Sequence[str]) -> dict[str, list[int]]:
        """Token ids of plain decoding."""
        return {path: self.captioner.baseline(path).token_ids for path in clips}

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        return {"run": self.run, "decode": self.decode, "plain": self.plain}


class Theirs:
    """``generate`` of ``transformers`` in batches of clips, the next of which is read meanwhile."""

    def __init__(self, profile: Profile) -> None:
        wanted = profile.models
        if wanted.threads is not None:
            torch.set_num_threads(wanted.threads)
        name = str(loading.embedded_folder(wanted.pair, "target")) if wanted.pair else wanted.target or ""
        where = loading.placement(wanted.device, wanted.dtype, "stock")
        self.profile, self.peer = profile, Batched(profile, loading.load(name, where))

    def run(self, clips: Sequence[str], batch: int) -> dict[str, Any]:
        """Caption a folder of clips; see :func:`folder`."""
        how = how_of(self.profile, len(clips), batch)

        def engine(tasks: Iterable[Task]) -> Iterator[Outcome]:
            several = list(groups(list(tasks), batch))
            with ThreadPoolExecutor(1) as ahead:
                coming = deque([ahead.submit(self._read, [task.entry.path for task in several[0]])])
                for some, after in zip(several, [*several[1:], None], strict=True):
                    clips = coming.popleft().result()
                    if after is not None:
                        coming.append(ahead.submit(self._read, [task.entry.path for task in after]))
                    for task, caption in zip(some, self.peer.captions(clips), strict=True):
                        yield Outcome(caption, None, task.whole)

        return {**folder(engine, clips, self.profile, how), "rows": float(batch), "device_bytes": device_bytes()}

    def decode(self, clips: Sequence[str], batch: int) -> dict[str, float]:
        """Tokens and seconds of decoding alone; see :class:`~vidspec.bench.steady.Steady`."""
        found = []
        for some in groups(clips, batch):
            counted = Steady(len(some))
            list(self.peer.captions(self._read(some), counted))
            found.append(counted)
        return Steady.together(found)

    def _read(self, paths: Sequence[str]) -> list[tuple[str, Clip, Any]]:
        wanted, read = self.profile.video, []
        for path in paths:
            clip = video.read(path, frames=wanted.frames, fps=wanted.fps, max_pixels=wanted.max_pixels)
            read.append((path, clip, self.peer.target.preprocess(clip)))
        return read

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        return {"run": self.run, "decode": self.decode}


def groups(clips: Sequence[Any], count: int) -> Iterator[Sequence[Any]]:
    """``count`` at a time; the last may be fewer."""
    return (clips[first : first + count] for first in range(0, len(clips), count))


def how_of(profile: Profile, total: int, batch: int) -> How:
    """How ``vidspec caption --batch`` does a folder by this profile."""
    keys = ("frames", "fps", "max_pixels", "decoder", "allow_damaged")
    read = {key: getattr(profile.video, key) for key in keys}
    return How(video=read, prompt=profile.generate.prompt, batch=batch, total=total)


def folder(engine: Executor, clips: Sequence[str], profile: Profile, how: How) -> dict[str, Any]:
    """Caption clips into a file.

    Returns:
        ``seconds`` from the first file opened to the last record written, ``ids`` and ``errors`` by clip, and how
        many ``rows`` windows had.
    """
    heard = Heard()
    with TemporaryDirectory() as place:
        entries = [Entry(clip) for clip in clips]
        settings = Settings(profile.model_dump(), how)
        output = OneFile(Path(place) / "captions.jsonl", "jsonl", several=True)
        began = time.perf_counter()
        try:
            tally = Tally(total=len(entries))
            execute(plan(entries, output, settings), engine, output, settings, tally, [heard])
        finally:
            output.close(entries, complete=True)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "ids": heard.ids, "errors": heard.errors, "rows": heard.rows}


def device_bytes() -> int | None:
    """The most that torch has held on a GPU since it was asked before; None without one."""
    if not torch.cuda.is_available():
        return None
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak


def main(about: str) -> None:
    """Answer questions.

    Args:
        about: JSON: ``peer``, whether it is ``generate``; ``label`` of the profile, and ``overrides`` it gives way to.
    """
    wanted = json.loads(about)

    def prepare() -> Mapping[str, Callable[..., Any]]:
        name, own = labels.parse(wanted["label"])
        profile = profiles.load(name, {**wanted["overrides"], **own})
        made: Ours | Theirs = Theirs(profile) if wanted["peer"] else Ours(profile)
        return made.functions

    answer(prepare)


if __name__ == "__main__":
    main(sys.argv[1])
