"""Worker process of ``research.throughput`` for one profile.

``python -m research.peers.profile_worker JSON`` serves a :class:`~research.peers.answering.JsonWorker`. Clips pass
through all steps of ``vidspec caption``: read ahead, captioned, and each record written to a file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

from research.peers.answering import serve_functions
from research.peers.steady import SteadyRate
from research.process_memory import peak_bytes
from research.ready_clips import ReadyClips
from vidspec.captioner import Captioner
from vidspec.config import labels
from vidspec.config.run_spec import RunSpec
from vidspec.config.schema import Profile
from vidspec.events.events import Finished, LoopLoad, Round
from vidspec.events.observer import ClipPart, RunObserver
from vidspec.events.record import Caption
from vidspec.events.tally import Tally
from vidspec.runs.executors.base import Executor
from vidspec.runs.executors.local import caption_locally
from vidspec.runs.feed import reader_count
from vidspec.runs.formats.base import make_format
from vidspec.runs.job import Job
from vidspec.runs.reader import ClipReader
from vidspec.runs.remaining import caption_remaining, plan_clips
from vidspec.runs.run_file import RunFile
from vidspec.runs.run_store import RunStore


class TimedRun(TypedDict):
    """Measurements of a run over a folder.

    ``seconds`` run from the first opened file to the last written record, ``ids`` and ``errors`` are by clip, ``rows``
    is the total of the target's windows.
    """

    seconds: float
    ids: dict[str, list[int]]
    errors: dict[str, str]
    rows: int


@dataclass
class TimedResults(RunObserver):
    """Collects token ids and failures by clip, and the ``rows`` of the target's windows of all clips."""

    ids: dict[str, list[int]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    rows: int = 0

    def result(self, caption: Caption, error: Exception | None, part: ClipPart, tally: Tally) -> None:
        if error is None:
            self.ids[caption.path] = caption.token_ids
            self.rows += caption.counters.get("drafted", 0) + caption.counters.get("target_forwards", 0)
        else:
            self.errors[caption.path] = str(error)


class TargetPassCounter(RunObserver):
    """Counts the target's passes."""

    passes = 0

    def load(self, load: LoopLoad) -> None:
        self.passes = load.passes


class ProfileContenderWorker:
    """Functions that time one profile."""

    def __init__(self, profile: Profile) -> None:
        self.captioner = Captioner.from_profile(profile)

    def run(self, clips: Sequence[str], batch: int) -> dict[str, object]:
        """Caption a folder of clips; see :func:`caption_folder`."""
        self.captioner.client.setup.forget()  # else the previous run's captions would serve as drafts
        spec, profile = RunSpec(batch=batch), self.captioner.client.profile
        loads, count = TargetPassCounter(), reader_count(spec, len(clips))
        readers = [ClipReader(spec.timeout, profile.video.stall) for _ in range(count)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.read(clips[0], None, None, profile.video.arguments)  # warm up the readers, as the models are
        measured = caption_folder(
            lambda jobs: caption_locally(self.captioner, jobs, spec, loads, readers),
            clips,
            profile,
            spec,
        )
        rows = measured["rows"] / loads.passes if loads.passes else None  # prefill excluded
        return {**measured, "rows": rows, "device_bytes": peak_bytes()}

    def decode(self, clips: Sequence[str], batch: int) -> dict[str, float]:
        """Return tokens and seconds of decoding alone; see :class:`~research.peers.steady.SteadyRate`."""
        rates = []
        for group in (clips[first : first + batch] for first in range(0, len(clips), batch)):
            arrivals = ReadyClips.of({path: self.captioner.client.inputs.read(path) for path in group})
            rate = SteadyRate(len(group))
            for key, event in self.captioner.client.serve(arrivals, batch=batch):
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, Round):
                    rate.emitted(time.perf_counter(), key, len(event.token_ids))
                elif isinstance(event, Finished):
                    rate.finished(time.perf_counter())
            rates.append(rate)
        return SteadyRate.combine(rates)

    def plain(self, clips: Sequence[str]) -> dict[str, list[int]]:
        """Return the token ids of plain decoding, by clip."""
        return {path: self.captioner.caption(path, plain=True).token_ids for path in clips}

    @property
    def functions(self) -> Mapping[str, Callable[..., object]]:
        return {"run": self.run, "decode": self.decode, "plain": self.plain}


def caption_folder(engine: Executor, clips: Sequence[str], profile: Profile, spec: RunSpec) -> TimedRun:
    """Caption clips into a temporary file and time it."""
    results = TimedResults()
    with TemporaryDirectory() as folder:
        jobs = [Job(clip) for clip in clips]
        store = RunStore([RunFile(Path(folder) / "captions.jsonl", make_format("jsonl"))])
        began = time.perf_counter()
        try:
            tally = Tally(total=len(jobs))
            remaining = plan_clips(jobs, store, spec, profile, tally)
            for _ in caption_remaining(remaining, engine, store, spec, profile, tally, results, set()):
                pass
        finally:
            store.close(jobs, complete=True)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "ids": results.ids, "errors": results.errors, "rows": results.rows}


def main(about: str) -> None:
    """Serve requests. ``about`` is JSON: the ``label`` of a profile, and ``overrides`` of its keys."""
    serve_functions(lambda: ProfileContenderWorker(labels.load(**json.loads(about))).functions)


if __name__ == "__main__":
    main(sys.argv[1])
