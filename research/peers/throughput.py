"""Measures many clips at once: profiles and peers caption the same folder in rotation, at several batch sizes.

Every contender is a separate process with its models loaded, so that its memory is its own. A warm-up runs every batch
size from the smallest on and is where memory is sampled: memory held afterwards may stem from the largest batch. Then
all contenders rotate, each run timed from the first file opened to the last record written. Prints nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import median
from typing import Protocol, TypeAlias, TypeVar

from research.peers.answering import JsonWorker, WorkerReply, worker_command
from research.peers.outside import OUTSIDE
from research.peers.sampler import MemorySampler
from research.peers.vllm_worker import environment
from vidspec.bench.loaded import ModelSource
from vidspec.bench.tables import cell, heading, left_out_rows, spread, table
from vidspec.bench.turns import rotate
from vidspec.config import labels, profiles
from vidspec.config.schema import Profile
from vidspec.errors import UsageError, VidspecError

#: ``generate`` of ``transformers`` on padded batches; the other peer is vLLM under another interpreter.
BATCHED = "generate-batched"

RunKey: TypeAlias = tuple[str, int]
T = TypeVar("T")


class ContenderPool:
    """Contenders by name; a dispensable one that fails is dropped.

    Args:
        names: all of them.
        dispensable: True if a contender's error does not end the measurement.
        say: called with each dropped contender's error.
        left: dictionary for the reasons.

    Attributes:
        names: remaining contenders.
        left: reason for each dropped one.
    """

    def __init__(
        self,
        names: Iterable[str],
        dispensable: Callable[[str], bool],
        say: Callable[[str], None],
        left: dict[str, str] | None = None,
    ) -> None:
        self.names, self._dispensable, self._say = list(names), dispensable, say
        self.left: dict[str, str] = {} if left is None else left

    def ask(self, name: str, call: Callable[[], T]) -> T | None:
        """Return the result of the call; None for a contender that was left out."""
        if name not in self.names:
            return None
        try:
            return call()
        except VidspecError as error:
            if not self._dispensable(name):
                raise
            self._say(f"left out: {error}")
            self.left[name] = str(error)
            self.names.remove(name)
            return None


class ContenderProcess(Protocol):
    """The part of :class:`~research.peers.answering.JsonWorker` that a measurement needs."""

    @property
    def pid(self) -> int: ...

    def ask(self, function: str, **arguments: object) -> WorkerReply: ...


@dataclass(frozen=True)
class Throughput:
    """Settings of a throughput measurement.

    Attributes:
        clips: video files, in order.
        profiles: labels of a bench; peers get the frames and the prompt of the first.
        peers: :data:`BATCHED`, and those of ``pythons``.
        batches: batch sizes, increasing.
        repeats: runs of each contender at each size.
        source: the models.
        frames: of every clip; the profiles' own if None.
        threads: of each process on a CPU.
        pythons: the interpreter that has vLLM.
    """

    clips: Sequence[str]
    profiles: Sequence[str]
    peers: Sequence[str] = ()
    batches: Sequence[int] = (1, 4, 8, 16)
    repeats: int = 3
    source: ModelSource = field(default_factory=ModelSource)
    frames: int | None = None
    threads: int | None = None
    pythons: Mapping[str, str] = field(default_factory=dict)

    @property
    def overrides(self) -> dict[str, object]:
        """Settings for every profile, unless its label sets them."""
        source = self.source
        target, draft = source.names
        models = {"pair": source.pair} if source.target is None else {"target": target, "draft": draft}
        fixed: dict[str, object] = {f"models.{key}": value for key, value in models.items()}
        fixed |= {"models.device": source.device, "models.dtype": source.dtype, "models.weights": source.weights}
        if self.threads is not None:
            fixed["models.threads"] = self.threads
        if self.frames is not None:
            fixed["video.frames"] = self.frames
        return fixed

    def profile(self, label: str) -> Profile:
        """Return the profile of a label with these settings."""
        return labels.load(label, self.overrides)


@dataclass
class ContenderRuns:
    """All runs of one contender at one batch size.

    Attributes:
        seconds: of each run, from the first file opened to the last record written.
        rates: tokens per second of decoding alone, with so many clips at once; see
            :class:`~research.peers.steady.SteadyRate`.
        ids: token ids by clip, of each run.
        errors: of clips that failed, by clip.
        rows: of a target pass, the mean of each run.
        peak: peak bytes of the warm-up, including child processes; on a GPU those that torch allocated.
    """

    seconds: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    ids: list[dict[str, list[int]]] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    rows: list[float] = field(default_factory=list)
    peak: int | None = None

    def add(self, run: WorkerReply, decoding: Mapping[str, float]) -> None:
        """Add a run, and its measurement of decoding alone."""
        self.seconds.append(run["seconds"])
        self.ids.append(run["ids"])
        self.errors |= run["errors"]
        if run["rows"] is not None:
            self.rows.append(run["rows"])
        if decoding["seconds"]:
            self.rates.append(decoding["tokens"] / decoding["seconds"])

    def equal_clips(self, reference: Mapping[str, Sequence[int]]) -> int:
        """Count the clips whose token ids are the reference's in every run."""
        return sum(all(run.get(clip) == ids for run in self.ids) for clip, ids in reference.items())


@dataclass(frozen=True)
class ThroughputRow:
    """One contender at one batch size; medians of its runs.

    Attributes:
        clips_per_s, tokens_per_s: of the whole folder; ``spread`` are the minimum and maximum of clips per second.
        decode_tokens_per_s: of decoding alone; None if it was not measured.
        peak: bytes; None if it cannot be read.
        rows: of a target pass; None if unknown.
        same: clips with the tokens of batch 1 of the same contender.
        plain: clips with those of plain decoding; None if they need not be, or plain decoding is unknown.
        drawn: tokens are sampled from plain decoding's distributions with other draws.
        clips, failed: all of them, and those that failed in any run.
        also: other names of the same contender.
    """

    name: str
    batch: int
    clips_per_s: float
    spread: tuple[float, float]
    tokens_per_s: float
    decode_tokens_per_s: float | None
    peak: int | None
    rows: float | None
    same: int
    plain: int | None
    drawn: bool
    clips: int
    failed: int
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class ThroughputResult:
    """Rows in the order of contenders and batch sizes, all measurements, and reasons for missing peers."""

    rows: list[ThroughputRow]
    measured: dict[RunKey, ContenderRuns]
    left: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return JSON values; token ids once for each contender and size."""
        runs = [
            {
                "name": name,
                "batch": batch,
                **{key: value for key, value in asdict(one).items() if key != "ids"},
                "token_ids": one.ids[0] if one.ids else {},
            }
            for (name, batch), one in self.measured.items()
        ]
        return {"rows": [asdict(row) for row in self.rows], "runs": runs, "left_out": dict(self.left)}


@contextmanager
def start_contenders(
    wanted: Throughput, say: Callable[[str], None] = lambda _: None, left: dict[str, str] | None = None
) -> Iterator[dict[str, JsonWorker]]:
    """Start and load a process for every profile and peer; they end on leaving.

    Raises:
        VidspecError: of profiles and models. A peer that cannot start is left out, and ``left`` has the reason.
    """
    every = {label: wanted.profile(label) for label in wanted.profiles}  # fails early on a bad label
    loaded = {label: every[label] for label in profiles.group_equal_profiles(every)}  # equal profiles are measured once
    pool = ContenderPool((*loaded, *wanted.peers), lambda name: name not in loaded, say, left)
    with ExitStack() as stack:
        found: dict[str, JsonWorker] = {}
        for name in list(pool.names):
            say(f"loading {name}")
            found[name] = JsonWorker(name, *contender_command(wanted, name, loaded))
            stack.callback(found[name].close)
            pool.ask(name, found[name].ready)
        yield {name: found[name] for name in pool.names}


def contender_command(wanted: Throughput, name: str, loaded: Mapping[str, Profile]) -> tuple[list[str], dict[str, str]]:
    """Return the command line of a contender's process, and its environment variables.

    Args:
        wanted: settings of the measurement.
        name: of the contender.
        loaded: the profiles by label; peers get the frames of the first.
    """
    if wanted.source.weights is not None and name not in loaded:
        raise UsageError(f"{name} has no target with --weights", hint="leave out the peers")
    threads = {} if wanted.threads is None else {"OMP_NUM_THREADS": str(wanted.threads)}
    if name not in wanted.pythons:
        label = name if name in loaded else next(iter(loaded))
        module = "research.peers.profile_worker" if name in loaded else "research.peers.generate_worker"
        about = {"label": label, "overrides": wanted.overrides}
        return [sys.executable, "-m", module, json.dumps(about)], threads
    first = next(iter(loaded.values()))
    served: dict[str, object] = {
        "model": wanted.source.names[0],
        "dtype": str(wanted.source.placement().dtype).removeprefix("torch."),
        "max_batch": max(wanted.batches),
        "video": first.video.arguments,
        "prompt": first.generate.prompt,
        "system": first.generate.system,
        "max_new_tokens": first.generate.max_new_tokens,
    }
    return worker_command(wanted.pythons[name], OUTSIDE[name], served), environment(wanted.threads)


def measure(
    wanted: Throughput,
    workers: Mapping[str, ContenderProcess],
    say: Callable[[str], None] = lambda _: None,
    keep: Callable[[ThroughputResult], None] = lambda _: None,
    left: dict[str, str] | None = None,
) -> ThroughputResult:
    """Warm up, run in rotation, compare.

    Args:
        wanted: settings of the measurement.
        workers: contenders by name; those without a profile are peers.
        say: called with the next step, and with each peer that failed and is left out.
        keep: called with the result so far after every run.
        left: reasons for peers missing from the workers; those that fail are added.

    Raises:
        VidspecError: of a profile.
    """
    clips, found = list(wanted.clips), dict[RunKey, ContenderRuns]()
    known = {label: wanted.profile(label) for label in wanted.profiles}
    also = profiles.group_equal_profiles(known)
    known = {label: known[label] for label in also if label in workers}
    exactly = {name: one for name, one in known.items() if one.lossless}
    ones: dict[str, Mapping[str, list[int]]] = {}
    pool = ContenderPool(workers, lambda name: name not in known, say, left)

    def ask(name: str, function: str, **arguments: object) -> WorkerReply:
        return pool.ask(name, partial(workers[name].ask, function, **arguments))

    for name, worker in workers.items():
        for batch in sorted(wanted.batches):
            say(f"warm-up {name} at batch {batch}")
            with MemorySampler(worker.pid) as watch:
                run = ask(name, "run", clips=clips[: 2 * batch], batch=batch)
            on_device = run and run["device_bytes"]
            found[name, batch] = ContenderRuns(peak=watch.peak if on_device is None else on_device)
        if 1 not in wanted.batches:
            say(f"{name} at batch 1, to compare with")
            ones[name] = (ask(name, "run", clips=clips, batch=1) or {"ids": {}})["ids"]
    plain = next((name for name, one in exactly.items() if one.schedule.kind == "autoregressive"), None)
    texts: Mapping[str, list[int]] = {}
    if plain is None and exactly:
        say("plain decoding, to compare with")
        texts = ask(next(iter(exactly)), "plain", clips=clips)

    def outcome() -> ThroughputResult:
        first = {name: one.ids[0] for (name, batch), one in found.items() if batch == 1 and one.ids} | ones
        exact = texts if plain is None else first.get(plain, {})
        runs = {key: one for key, one in found.items() if key[0] in pool.names and one.seconds}
        greedy = all(one.generate.temperature == 0 and not one.generate.penalties for one in known.values())
        rows = []
        for (name, batch), one in runs.items():
            drawn = name in exactly and not known[name].token_for_token
            comparable = name in exactly and not drawn if name in known else greedy
            row = _row(name, batch, one, first.get(name, one.ids[0]), exact if comparable else {}, drawn=drawn)
            rows.append(replace(row, also=also.get(name, ())))
        return ThroughputResult(rows, runs, pool.left)

    together = clips[: max(wanted.batches)]
    for repeat, (name, batch) in ((at, key) for at in range(wanted.repeats) for key in rotate(list(found), at)):
        if name not in pool.names:
            continue
        say(f"{repeat + 1}/{wanted.repeats} {name} at batch {batch}")
        run = ask(name, "run", clips=clips, batch=batch)
        decoding = ask(name, "decode", clips=together[: len(together) // batch * batch] or together, batch=batch)
        if decoding is None:
            continue
        found[name, batch].add(run, decoding)
        for clip, error in run["errors"].items():
            say(f"{name} at batch {batch}: {clip} failed: {error}")
        keep(outcome())
    return outcome()


def _row(
    name: str,
    batch: int,
    one: ContenderRuns,
    first: Mapping[str, Sequence[int]],
    exact: Mapping[str, Sequence[int]],
    *,
    drawn: bool,
) -> ThroughputRow:
    clips = len(first.keys() | one.errors.keys())
    rates = [clips / seconds for seconds in one.seconds]
    tokens = [sum(map(len, ids.values())) for ids in one.ids]
    return ThroughputRow(
        name=name,
        batch=batch,
        clips_per_s=median(rates),
        spread=(min(rates), max(rates)),
        tokens_per_s=median(count / seconds for count, seconds in zip(tokens, one.seconds, strict=True)),
        decode_tokens_per_s=median(one.rates) if one.rates else None,
        peak=one.peak,
        rows=median(one.rows) if one.rows else None,
        same=one.equal_clips(first),
        plain=one.equal_clips(exact) if exact else None,
        drawn=drawn,
        clips=clips,
        failed=len(one.errors),
    )


def markdown(rows: Sequence[ThroughputRow], left: Mapping[str, str] | None = None) -> str:
    """Return one line for each row, and for each peer that was left out."""
    header = (
        heading(row.also for row in rows),
        "batch",
        "clips/s",
        "tokens/s",
        "decoding alone, tokens/s",
        "peak memory",
        "rows / pass",
        "same tokens as batch 1",
        "same tokens as plain decoding",
    )
    cells = [
        (
            " = ".join((row.name, *row.also)),
            str(row.batch),
            spread((row.clips_per_s, *row.spread), unit=""),
            f"{row.tokens_per_s:.0f}",
            cell(row.decode_tokens_per_s, ".0f"),
            cell(None if row.peak is None else row.peak / 2**20, ".0f", " MiB"),
            cell(row.rows, ".1f"),
            f"{row.same}/{row.clips}",
            "in distribution" if row.drawn else "-" if row.plain is None else f"{row.plain}/{row.clips}",
        )
        for row in rows
    ]
    return table(header, [*cells, *left_out_rows(left or {}, len(header))])
