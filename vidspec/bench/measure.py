"""``vidspec bench``: load, measure in turns, keep every record, summarise. Prints only through ``say``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vidspec._version import __version__
from vidspec.bench.loaded import LoadedModels, ModelSource, require_files
from vidspec.bench.machine import machine
from vidspec.bench.results import ResultsFile
from vidspec.bench.rows import BenchRow, Records, bench_rows, markdown, methods_with_other_draws, turn_label
from vidspec.bench.turns import measure_in_turns, time_call
from vidspec.captioner import Captioner
from vidspec.config.profiles import group_equal_profiles
from vidspec.config.schema import Profile
from vidspec.embedded.samples import shipped
from vidspec.engine.device import synchroniser
from vidspec.engine.layouts import MatrixLinear, stored_bytes
from vidspec.engine.matrix import Matrix
from vidspec.events.record import Caption
from vidspec.events.tally import counted

if TYPE_CHECKING:
    from vidspec.engine.decoder import Decoder
    from vidspec.models.video_language_model import VideoLanguageModel

__all__ = ["Bench", "BenchResult", "BenchRun", "ProfileContender", "fingerprint", "open_bench"]


def copy_bandwidth(device: torch.device, megabytes: int = 256, repeats: int = 8) -> float:
    """Return bytes read and written per second by the fastest of several copies of a buffer larger than the caches."""
    source = torch.ones(megabytes * 2**20 // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    wait = synchroniser(device)
    return 2 * source.nbytes / min(time_call(lambda: target.copy_(source), wait) for _ in range(repeats))


def weight_bytes(language: nn.Module, head: nn.Module, decoder: Decoder | None = None) -> int:
    """Return the weight bytes that one decoding pass reads: all blocks and the head; the embedding only if tied to it.

    Args:
        language: the stock language model.
        head: its ``lm_head``.
        decoder: the decoder that runs it; its codes and packed weights replace those of the stock modules.
    """
    read = getattr(decoder, "head", head)
    read = read.matrix if isinstance(read, MatrixLinear) else read
    own = isinstance(read, Matrix) and read.nbytes > 0 and not read.second
    of_head = [] if own else [*head.parameters()]
    seen = {id(p): p.nbytes for p in [*language.parameters(), *of_head]}
    table = language.get_input_embeddings().weight  # type: ignore[operator]
    if id(table) not in {id(p) for p in of_head}:
        seen.pop(id(table), None)
    return sum(seen.values()) + (0 if decoder is None else stored_bytes(decoder.matrices, copies=False))


def model_weight_bytes(model: VideoLanguageModel) -> int:
    """Return bytes of all weights and buffers of a model, including its vision tower; tied ones count once.

    Includes weights packed by oneDNN.
    """
    module: nn.Module = model.model
    own = sum({id(one): one.nbytes for one in [*module.parameters(), *module.buffers()]}.values())
    return own + sum(matrix.nbytes for matrix in model.matrices)


def kv_bytes(model: VideoLanguageModel) -> int:
    """Return the bytes of the keys and values of one token over all layers."""
    return model.decoder.slab.entry_bytes


def pass_bytes(model: VideoLanguageModel, context: float = 0.0) -> float:
    """Return the bytes that one decoding pass reads: weights, and cache entries of ``context`` tokens."""
    stock: Any = model.model
    return weight_bytes(stock.model.language_model, stock.lm_head, model.decoder) + context * kv_bytes(model)


@dataclass(frozen=True)
class Bench:
    """Settings of a bench.

    Attributes:
        profiles: names or files; the first is the baseline. Equal ones are one contender.
        clips: video files; the shipped samples if empty.
        repeats: of every clip.
        threads: of torch on a CPU; torch's default if None.
        json: file for the records, written one by one.
        overwrite: start that file from scratch.
        turns: of a dialogue about each clip; the profiles' own prompt if empty. Each turn is measured by itself.
        overrides: values of all profiles, by dotted key; those of a label win.
    """

    profiles: Sequence[str]
    clips: Sequence[Path] = ()
    repeats: int = 3
    source: ModelSource = field(default_factory=ModelSource)
    threads: int | None = None
    json: Path | None = None
    overwrite: bool = False
    turns: tuple[str, ...] = ()
    overrides: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class BenchResult:
    """Result of a bench: rows of the tables, the tables, facts about the machine, records by contender and clip.

    ``left`` has the reason for each contender that was left out.
    """

    rows: list[BenchRow]
    table: str
    machine: dict[str, object]
    records: Records
    left: dict[str, str] = field(default_factory=dict)


class ProfileContender:
    """Captions clips with a profile; in a dialogue about each clip the last turn is measured.

    Args:
        turns: of the dialogue; the profile's own prompt if empty.
    """

    def __init__(self, captioner: Captioner, turns: Sequence[str] = ()) -> None:
        self.captioner, self.turns = captioner, turns
        self._captioned: set[str] = set()

    def __call__(self, clip: str) -> Caption:
        if clip in self._captioned:  # its own caption would be reused as a draft
            self.captioner.client.setup.forget()
            self._captioned.clear()
        self._captioned.add(clip)
        if not self.turns:
            return self.captioner.caption(clip)
        dialogue = self.captioner.dialogue(clip)
        return [dialogue.ask(turn) for turn in self.turns][-1]


class BenchRun:
    """A bench with its models loaded and its results file open.

    Args:
        say: called with the next step.
        more: further settings that must match to continue a results file.

    Attributes:
        captioners: by label; equal profiles once.
        contenders: callables that caption a clip, by name; others than profiles may be added before :meth:`measure`.
        facts: about the machine; others may be added before :meth:`summarise`.
    """

    def __init__(
        self, bench: Bench, loaded: LoadedModels, say: Callable[[str], None], more: Mapping[str, object]
    ) -> None:
        self.bench, self.loaded, self._say = bench, loaded, say
        self.clips = [str(clip) for clip in bench.clips or shipped()]
        named = {name: loaded.captioner(name, bench.overrides) for name in bench.profiles}
        self._also = group_equal_profiles({name: one.client.profile for name, one in named.items()})
        self.captioners = {name: named[name] for name in self._also}
        self.baseline = next(iter(self.captioners))
        self.contenders: dict[str, Callable[[str], Caption]] = {
            turn_label(name, turn): ProfileContender(one, bench.turns[: turn + 1])
            for turn in range(max(1, len(bench.turns)))
            for name, one in self.captioners.items()
        }
        self.facts, self.left = machine(loaded.where.device), dict[str, str]()
        self.results = ResultsFile(bench.json, self._settings(more), self.facts, overwrite=bench.overwrite)
        if self.results.done:
            say(f"{bench.json}: continuing after {counted(len(self.results.done), 'record')}; --overwrite starts over")

    def measure(self) -> Records:
        """Measure all contenders in turns; records already in the results file are not measured again."""
        return measure_in_turns(
            self.contenders,
            self.clips,
            self.bench.repeats,
            done=self.results.done,
            keep=self.results.add,
            leave=self.left.__setitem__,
            say=self._say,
        )

    def summarise(self, records: Records) -> BenchResult:
        """Return rows and tables of the records of :meth:`measure`, and complete the results file."""
        by_turn = self._rows(records)
        rows = [row for one in by_turn for row in one]
        target, speed = self.loaded.target, copy_bandwidth(self.loaded.where.device)
        self.facts |= {
            "copy_GB_per_s": round(speed / 1e9, 2),
            "target_pass_MB": round(pass_bytes(target) / 1e6, 2),
            "target_entry_bytes": kv_bytes(target),
        }

        def limit(context: float) -> float:
            return speed / pass_bytes(target, context)

        table = "\n\n".join(markdown(one, one[0].name, limit, self.left) for one in by_turn)
        self.results.machine |= self.facts
        self.results.finish(rows=[asdict(row) for row in rows], left_out=self.left)
        return BenchResult(rows, table, self.facts, records, self.left)

    def _rows(self, records: Records) -> list[list[BenchRow]]:
        """Return the rows of the bench, or of each turn of its dialogues."""
        drawn = methods_with_other_draws(
            {name: one.client.profile for name, one in self.captioners.items()}, self.baseline
        )

        def rows(turn: int) -> list[BenchRow]:
            def labels(names: Iterable[str]) -> list[str]:
                return [turn_label(name, turn) for name in names]

            part = {name: records[name] for name in (labels(self.captioners) if self.bench.turns else records)}
            also = {turn_label(name, turn): labels(more) for name, more in self._also.items()}
            return bench_rows(part, turn_label(self.baseline, turn), labels(drawn), also=also)

        return [rows(turn) for turn in range(max(1, len(self.bench.turns)))]

    def _settings(self, more: Mapping[str, object]) -> dict[str, object]:
        """Return the settings that must match to continue a results file; repeats may differ."""
        return {
            "vidspec": __version__,
            **asdict(self.bench.source),
            "threads": self.bench.threads,
            **more,
            "profiles": {name: fingerprint(one.client.profile) for name, one in self.captioners.items()},
            "clips": [[clip, Path(clip).stat().st_size] for clip in self.clips],
            **({"turns": list(self.bench.turns)} if self.bench.turns else {}),
            **({"overrides": dict(self.bench.overrides)} if self.bench.overrides else {}),
        }


@contextmanager
def open_bench(
    bench: Bench, say: Callable[[str], None], more: Mapping[str, object] = MappingProxyType({})
) -> Iterator[BenchRun]:
    """Load the models of a bench and open its results file; arguments as for :class:`BenchRun`.

    Raises:
        VidspecError: of profiles, models, clips and the results file.
    """
    require_files(bench.clips)
    if bench.threads:
        torch.set_num_threads(bench.threads)
    loaded = LoadedModels(bench.source)
    try:
        yield BenchRun(bench, loaded, say, more)
    finally:
        loaded.close()


def measure(bench: Bench, say: Callable[[str], None] = lambda _: None) -> BenchResult:
    """Run a bench; records already in the results file are not measured again.

    Raises:
        VidspecError: of profiles, models, clips and the results file.
    """
    with open_bench(bench, say) as run:
        return run.summarise(run.measure())


def fingerprint(profile: Profile) -> str:
    """Return a digest of a profile's settings, to distinguish profiles of the same name."""
    return hashlib.sha256(profile.model_dump_json().encode()).hexdigest()[:16]
