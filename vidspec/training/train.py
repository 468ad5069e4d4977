"""A head for a target, from captions that it wrote: choose captions, read states, train, measure, keep what gains.

All of it is one generator of events. What it has done so far stands in a folder of the user's cache: the same call
again continues there, and a call that ends removes it.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import torch

from vidspec import memory
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.config.schema import Profile
from vidspec.decoding.auto import target_placement
from vidspec.errors import OutputError, UsageError, option
from vidspec.files import FileLock
from vidspec.models import loading
from vidspec.models.dflash import load_block_head
from vidspec.models.own_heads import OwnHead, add_head, copy_head, drafting_keys, head_name, today, weights_digest
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.runner import run
from vidspec.runs.sources.base import EXTENSIONS
from vidspec.runs.store.places import read_captions
from vidspec.training.captions import FEWEST, LearnableCaptions, learnable_captions
from vidspec.training.evaluation import DRAFTING, HeadEvaluation, MeasuredClip, measure
from vidspec.training.head import SharedWeights, TrainedBlocks
from vidspec.training.new_head import BLOCK
from vidspec.training.states import CaptionedClip, StatesFile, hold_out, write_states
from vidspec.training.steps import BLOCKS, CLIPS, GPU_CLIPS, HeadTraining, StepsProgress, TrainingLimits
from vidspec.user_cache import cache_file

__all__ = ["ClipCaptioned", "StatesProgress", "Trained", "TrainingEvent", "TrainingPlan", "measure_head", "train"]

#: Room that is left on the disk.
SPARE = 1 << 30


@dataclass(frozen=True)
class TrainingPlan:
    """Size and cost of a training, before it begins.

    Attributes:
        target: its name.
        clips, held_out: captions that are trained on, and that are not.
        left_out: other captions, by the reason.
        prompts: number of different prompts.
        states_bytes: of the states on the disk, about.
        memory_bytes: most memory that training takes, without the states.
        parameters: of the head.
        continues: True if an earlier call of the same is continued.
        folder: of what has been done so far.
    """

    target: str
    clips: int
    held_out: int
    left_out: Mapping[str, int]
    prompts: int
    states_bytes: int
    memory_bytes: int
    parameters: int
    continues: bool
    folder: Path


@dataclass(frozen=True)
class ClipCaptioned:
    """A clip has been captioned, as there was no caption to learn from; ``number`` counts them."""

    number: int


@dataclass(frozen=True)
class StatesProgress:
    """Captions whose states have been read, of all; ``left_out`` could not be read."""

    done: int
    total: int
    left_out: int = 0


@dataclass(frozen=True)
class Trained:
    """The end.

    Attributes:
        evaluation: of the head.
        measured: the clips it was measured on.
        kept: the head as it is listed, if it is used from now on; None if it gains too little.
        out: the folder that was asked for.
    """

    evaluation: HeadEvaluation
    measured: Sequence[MeasuredClip]
    kept: OwnHead | None
    out: Path | None


TrainingEvent: TypeAlias = ClipCaptioned | TrainingPlan | StatesProgress | StepsProgress | MeasuredClip | Trained


def train(
    captions: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    target: str | None = None,
    begin: str | None = None,
    minutes: float = 60.0,
    steps: int | None = None,
    blocks: int = 2,
    seed: int = 0,
    disk: int | None = None,
    out: str | os.PathLike[str] | None = None,
) -> Generator[TrainingEvent, None, None]:
    """Train a draft head for a target on captions that it wrote, and yield what happens.

    Args:
        captions: folders, and files of records; or videos and folders of them, which are captioned first.
        target: the target; None for the one that wrote most of the captions.
        begin: a head to begin with, a hub id or folder, which keeps its layout; None for the target's last blocks.
        minutes: most minutes of training; it ends before when accepted tokens no longer rise.
        steps: number of steps, in place of that rule; with it a head on a CPU depends on nothing but the seed.
        blocks: of a new head.
        seed: of all that is random.
        disk: most bytes of states; captions beyond are left out. None for all that fit.
        out: also write the head there, into a folder that is new or empty.

    Raises:
        UsageError: there are too few captions, or an option is wrong; before anything is loaded.
        ModelError, DeviceError: the target cannot be loaded, has changed since, or memory does not suffice.
        OutputError: the disk is full.
    """
    if not 0 < minutes <= 24 * 60 * 7:
        raise UsageError(f"{option('minutes', minutes)}: must be more than 0, and at most a week")
    places = [Path(captions)] if isinstance(captions, str | os.PathLike) else [Path(place) for place in captions]
    options = begin, blocks, seed, disk, None if out is None else Path(out)
    if out is not None and (Path(out).is_file() or (Path(out).is_dir() and any(Path(out).iterdir()))):
        raise UsageError(
            f"{option('out', out)}: holds files already, and is left as it is",
            hint="name a folder that is new or empty",
        )
    if any(map(_holds_clips, places)):
        return _train_on_clips(places, target, options, TrainingLimits(minutes, steps))
    found = learnable_captions(read_captions(places), target, ", ".join(map(str, places)))
    return _Training(found, *options).run(TrainingLimits(minutes, steps))


#: Head to begin with, blocks, seed, bytes of the disk and folder to write to.
_HeadOptions: TypeAlias = tuple[str | None, int, int, int | None, Path | None]


def _holds_clips(place: Path) -> bool:
    """Return True for a video, and for a folder without captions."""
    if place.is_dir():
        return not len(read_captions([place]))
    return place.suffix.lower()[1:] in EXTENSIONS


def _train_on_clips(
    places: Sequence[Path], target: str | None, options: _HeadOptions, limits: TrainingLimits
) -> Generator[TrainingEvent, None, None]:
    """Caption clips into a file of the cache, which a later call continues, and train on them."""
    named = json.dumps([target, *(os.path.abspath(place) for place in places)])
    folder = cache_file("training", blake2b(named.encode(), digest_size=6).hexdigest())
    folder.mkdir(parents=True, exist_ok=True)
    given: dict[str, Any] = {"output": folder / "captions.jsonl"} | ({} if target is None else {"target": target})
    for number, _ in enumerate(run(map(str, places), **given), 1):
        yield ClipCaptioned(number)
    found = learnable_captions(read_captions([folder / "captions.jsonl"]), target, ", ".join(map(str, places)))
    yield from _Training(found, *options).run(limits)
    shutil.rmtree(folder)


class _Training:
    """One training, from captions to a head that is kept.

    Args:
        found: the captions.
        begin, blocks, seed, disk, out: see :func:`train`.
    """

    def __init__(
        self,
        found: LearnableCaptions,
        begin: str | None,
        blocks: int,
        seed: int,
        disk: int | None,
        out: Path | None,
    ) -> None:
        self.found, self.begin, self.blocks, self.seed, self.disk, self.out = found, begin, blocks, seed, disk, out
        wanted = found.profile.models
        assert wanted.target is not None
        self.name = wanted.target
        self.digest = weights_digest(self.name, wanted.adapter) or "unknown"
        options = json.dumps([self.name, self.digest, begin, blocks, seed])
        self.folder = cache_file("training", blake2b(options.encode(), digest_size=6).hexdigest())
        self.unreadable: list[tuple[CaptionedClip, Exception]] = []

    def run(self, limits: TrainingLimits) -> Generator[TrainingEvent, None, None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder)
        except TimeoutError:
            raise UsageError(f"{self.folder}: another process trains this head") from None
        except OSError as error:
            raise OutputError(f"{self.folder}: cannot be written: {error.strerror}") from None
        with lock:
            target = self._load()
            head, file = self._head(target)
            clips = self._affordable(file)
            trained, held_out = hold_out(clips)
            yield self._planned(head, file, trained, held_out)
            for done in self._states(target, [*trained, *held_out], file, head):
                yield StatesProgress(done, len(clips), len(self.unreadable))
            del target
            _release()
            known, unknown = ([clip.key for clip in part if clip.key in file] for part in (trained, held_out))
            training = HeadTraining(head, file, known, unknown, self.folder, seed=self.seed, limits=limits)
            training.load()
            stopped = False
            for progress in training.run():
                stopped = progress.stopped
                yield progress
            del training, head
            _release()
            yield from self._measure(len(trained), [clip for clip in held_out if clip.key in file])
            if not stopped:
                del file
                shutil.rmtree(self.folder)

    def _load(self) -> VideoLanguageModel:
        return loading.load_model(self.name, target_placement(self.found.profile))

    def _head(self, target: VideoLanguageModel) -> tuple[TrainedBlocks, StatesFile]:
        shared = SharedWeights.of(target)
        if self.begin is None:
            head = TrainedBlocks.new(target, shared, self.blocks, self.seed)
        else:
            head = TrainedBlocks.read(self.begin, target, shared)
        dtype = torch.float16 if target.dtype is torch.float32 else target.dtype
        return head, StatesFile(self.folder, len(head.taps), head.decoder.hidden, dtype)

    def _affordable(self, file: StatesFile) -> list[CaptionedClip]:
        """Return the captions whose states fit the disk, the first of them.

        Raises:
            UsageError: fewer than :data:`FEWEST` do.
        """
        most = shutil.disk_usage(self.folder).free - SPARE
        limit = most if self.disk is None else min(most, self.disk)
        chosen, total = list[CaptionedClip](), 0
        for clip in self.found.clips:
            total += 0 if clip.key in file else _bytes_of(file, clip)
            if total > limit:
                break
            chosen.append(clip)
        if len(chosen) < FEWEST:
            needed = sum(_bytes_of(file, clip) for clip in self.found.clips[:FEWEST])
            raise UsageError(
                f"states of {len(chosen)} captions fit {limit / 1e9:.2f} GB, and a head learns from {FEWEST} or more",
                hint=f"{option('disk')}, or room in {self.folder.parent}, for {needed / 1e9:.2f} GB",
            )
        return chosen

    def _planned(
        self,
        head: TrainedBlocks,
        file: StatesFile,
        trained: Sequence[CaptionedClip],
        held_out: Sequence[CaptionedClip],
    ) -> TrainingPlan:
        found, both = self.found, [*trained, *held_out]
        left_out = dict(found.left_out)
        if len(both) < len(found.clips):
            left_out["beyond the disk"] = len(found.clips) - len(both)
        parameters = sum(tensor.numel() for tensor in head.tensors.values())
        states = sum(_bytes_of(file, clip) for clip in both)
        continues = len(file) > 0 or (self.folder / "training.pt").exists()
        weights = head.shared
        shared = weights.embedding.nbytes + (0 if weights.output is weights.embedding else weights.output.nbytes)
        needed = training_bytes(parameters, shared, weights.vocabulary, gpu=weights.embedding.device.type != "cpu")
        return TrainingPlan(
            self.name,
            len(trained),
            len(held_out),
            left_out,
            found.prompts,
            states,
            needed,
            parameters,
            continues,
            self.folder,
        )

    def _states(
        self, target: VideoLanguageModel, clips: Sequence[CaptionedClip], file: StatesFile, head: TrainedBlocks
    ) -> Iterable[int]:
        ordered = sorted(clips, key=lambda clip: clip.name)
        return write_states(
            target,
            ordered,
            file,
            head.taps,
            one_axis=head.one_axis,
            unreadable=lambda clip, error: self.unreadable.append((clip, error)),
        )

    def _measure(
        self, trained: int, held_out: Sequence[CaptionedClip]
    ) -> Generator[MeasuredClip | Trained, None, None]:
        """Measure the best head, copy it to where it is used, and yield each clip and the end."""
        best = self.folder / "head"
        measured: list[MeasuredClip] = []
        for one in measure_head(
            best, self.found.profile, held_out, lambda clip, error: self.unreadable.append((clip, error))
        ):
            measured.append(one)
            yield one
        if not measured:
            raise UsageError("none of the clips that are left for measuring can be read any more")
        evaluation = HeadEvaluation.of(measured)
        facts = OwnHead(
            head_name(self.name, self.digest),
            self.name,
            self.digest,
            "dflash",
            today(),
            trained,
            evaluation.tau,
            evaluation.decode,
            evaluation.end_to_end,
        )
        kept = add_head(best, facts) if facts.gains and self.digest != "unknown" else None
        if self.out is not None:
            try:
                copy_head(best, self.out)
            except OSError as error:
                raise OutputError(f"{self.out}: cannot be written: {error.strerror}") from None
        yield Trained(evaluation, measured, kept, self.out)


def measure_head(
    head: Path,
    profile: Profile,
    clips: Sequence[CaptionedClip],
    unreadable: Callable[[CaptionedClip, Exception], None],
) -> Iterator[MeasuredClip]:
    """Load a head and its target, and caption clips with it and by plain decoding, in turns; yields each.

    Args:
        head: its folder.
        profile: of the captions that it learned from, which has its target.
        clips, unreadable: see :func:`~vidspec.training.evaluation.measure`.
    """
    assert profile.models.target is not None
    placement = target_placement(profile)
    target = loading.load_model(profile.models.target, placement)
    block_head = load_block_head(str(head), target, placement)
    drafting = profiles.override(profile, {**drafting_keys(str(head), "dflash"), **DRAFTING})
    with Captioner(drafting, target, None, head=block_head) as captioner:
        yield from measure(captioner, clips, unreadable)


def training_bytes(numbers: int, shared: int, vocabulary: int, *, gpu: bool) -> int:
    """Return about the most bytes that training a head takes, the libraries aside.

    Weights, gradients, two moments and the average in float32, on a GPU a copy and its gradients in 16 bits; the
    target's embedding and output head; six times the logits of a step.

    Args:
        numbers: of the head.
        shared: bytes of the target's embedding and output head.
        vocabulary: of the target.
        gpu: True for a head on a GPU.
    """
    rows = (GPU_CLIPS if gpu else CLIPS) * BLOCKS * BLOCK
    return shared + numbers * (24 if gpu else 20) + 6 * 4 * rows * vocabulary


def _bytes_of(file: StatesFile, clip: CaptionedClip) -> int:
    return file.bytes_of(64 + len(clip.request.prompt or "") // 3, len(clip.tokens))


def _release() -> None:
    """Return the memory of what is no longer referred to."""
    gc.collect()
    memory.release_memory()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
