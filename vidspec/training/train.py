"""A head for a target, from captions that it wrote: choose captions, read states, train, measure, keep what gains.

All of it is one generator of events. What it has done so far stands in a folder of the user's cache: the same call
again continues there, and a call that ends removes it.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import torch

from vidspec import memory
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.config.schema import Profile
from vidspec.decoding.auto import target_placement
from vidspec.decoding.captioner_models import load_head
from vidspec.errors import OutputError, UsageError, VidspecError, option
from vidspec.files import FileLock
from vidspec.models import loading
from vidspec.models.checkpoint_config import head_kind
from vidspec.models.own_heads import OwnHead, add_head, copy_head, drafting_keys, head_name, today, weights_digest
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.runner import run
from vidspec.runs.sources.base import EXTENSIONS
from vidspec.runs.store.places import read_captions
from vidspec.training.captions import FEWEST, LearnableCaptions, learnable_captions
from vidspec.training.chain_head import TrainedChain
from vidspec.training.evaluation import DRAFTING, HeadEvaluation, MeasuredClip, measure
from vidspec.training.head import SharedWeights, TrainedBlocks, TrainedHead
from vidspec.training.new_head import BLOCK
from vidspec.training.states import CaptionedClip, StatesFolder, hold_out, rows_of, write_states
from vidspec.training.steps import BLOCKS, CLIPS, GPU_CLIPS, HeadTraining, StepsProgress, TrainingLimits
from vidspec.user_cache import cache_file

__all__ = ["ClipCaptioned", "StatesProgress", "Trained", "TrainingEvent", "TrainingPlan", "measure_head", "train"]

#: Room that is left on the disk.
SPARE = 1 << 30
#: Most clips that a new head is measured on: each is captioned twice.
MEASURED = 50


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
    """Captions whose states have been read, of all; ``unreadable``, for these reasons, are left out."""

    done: int
    total: int
    unreadable: Sequence[VidspecError] = ()


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


@dataclass(frozen=True)
class _HeadOptions:
    """Options of :func:`train` that say how a head is trained and where it goes."""

    begin: str | None
    blocks: int
    seed: int
    disk: int | None
    out: Path | None
    limits: TrainingLimits


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
        begin: a block or EAGLE-3 head to begin with, a hub id or folder, which keeps its layout; None for the target's
            last blocks.
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
    folder = None if out is None else Path(out)
    if folder is not None and (folder.is_file() or (folder.is_dir() and any(folder.iterdir()))):
        raise UsageError(
            f"{option('out', out)}: holds files already, and is left as it is",
            hint="name a folder that is new or empty",
        )
    options = _HeadOptions(begin, blocks, seed, disk, folder, TrainingLimits(minutes, steps))
    if any(map(_holds_clips, places)):
        return _train_on_clips(places, target, options)
    return _train_on_captions(learnable_captions(read_captions(places), target, places), options)


def _holds_clips(place: Path) -> bool:
    """Return True for a video, and for a folder without captions."""
    return not len(read_captions([place])) if place.is_dir() else place.suffix.lower()[1:] in EXTENSIONS


def _cache_folder(*identity: object) -> Path:
    """Return the folder of the cache for what is identified by JSON-ready values."""
    return cache_file("training", blake2b(json.dumps(identity).encode(), digest_size=6).hexdigest())


def _train_on_clips(
    places: Sequence[Path], target: str | None, options: _HeadOptions
) -> Generator[TrainingEvent, None, None]:
    """Caption clips into a file of the cache, which a later call continues, and train on them."""
    folder = _cache_folder(target, *(os.path.abspath(place) for place in places))
    folder.mkdir(parents=True, exist_ok=True)
    given: dict[str, Any] = {"output": folder / "captions.jsonl"} | ({} if target is None else {"target": target})
    for number, _ in enumerate(run(map(str, places), **given), 1):
        yield ClipCaptioned(number)
    found = learnable_captions(read_captions([folder / "captions.jsonl"]), target, places)
    yield from _train_on_captions(found, options)
    shutil.rmtree(folder)


def _train_on_captions(found: LearnableCaptions, options: _HeadOptions) -> Generator[TrainingEvent, None, None]:
    """Read states, train, measure, and keep what gains."""
    wanted, unreadable = found.profile.models, list[VidspecError]()
    name = str(wanted.target)
    digest = weights_digest(name, wanted.adapter) or "unknown"
    folder = _cache_folder(name, digest, options.begin, options.blocks, options.seed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder)
    except TimeoutError:
        raise UsageError(f"{folder}: another process trains this head") from None
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror}") from None
    with lock:
        target = loading.load_model(name, target_placement(found.profile))
        head = _begun_head(target, options)
        states = StatesFolder(folder, head.taps, head.hidden, target.dtype, one_axis=head.one_axis)
        clips = _affordable(found.clips, states, options.disk)
        trained, held_out = hold_out(clips)
        yield _plan(found, head, states, trained, held_out)
        for done in write_states(target, clips, states, unreadable):
            yield StatesProgress(done, len(clips), unreadable)
        del target
        _release()
        known, unknown = ([clip for clip in part if clip.key in states] for part in (trained, held_out))
        if len(known) + len(unknown) < FEWEST or not unknown:
            raise UsageError(
                f"clips of {len(unreadable)} of {len(clips)} captions cannot be read, and a head learns from {FEWEST} "
                f"or more; the first: {unreadable[0].message}"
            )
        keys, others = ([clip.key for clip in part] for part in (known, unknown))
        training = HeadTraining(head, states, keys, others, folder, seed=options.seed, limits=options.limits)
        training.load()
        for progress in training.run():
            yield progress
        del training, head
        _release()
        measured = list[MeasuredClip]()
        for one in measure_head(folder / "head", found.profile, unknown[:MEASURED], unreadable):
            measured.append(one)
            yield one
        if not measured:
            raise UsageError(f"no clip that is left for measuring can be read any more: {unreadable[-1].message}")
        yield _kept(folder / "head", name, digest, len(known), measured, options.out)
        if not progress.stopped:
            shutil.rmtree(folder)


def _begun_head(target: VideoLanguageModel, options: _HeadOptions) -> TrainedHead:
    shared = SharedWeights.of(target)
    if options.begin is None:
        return TrainedBlocks.new(target, shared, options.blocks, options.seed)
    if head_kind(options.begin) == "eagle3":
        return TrainedChain(options.begin, target, shared)
    return TrainedBlocks.read(options.begin, target, shared)


def _affordable(clips: Sequence[CaptionedClip], states: StatesFolder, disk: int | None) -> list[CaptionedClip]:
    """Return the captions whose states fit the disk, the first of them.

    Raises:
        UsageError: fewer than :data:`FEWEST` do.
    """
    most = shutil.disk_usage(states.folder).free - SPARE
    limit = most if disk is None else min(most, disk)
    ends = [*accumulate(0 if clip.key in states else states.bytes_of(clip) for clip in clips)]
    count = sum(end <= limit for end in ends)
    if count < FEWEST:
        raise UsageError(
            f"states of {count} captions fit {limit / 1e9:.2f} GB, and a head learns from {FEWEST} or more",
            hint=f"{option('disk')}, or room in {states.folder.parent}, for {ends[FEWEST - 1] / 1e9:.2f} GB",
        )
    return [*clips[:count]]


def _plan(
    found: LearnableCaptions,
    head: TrainedHead,
    states: StatesFolder,
    trained: Sequence[CaptionedClip],
    held_out: Sequence[CaptionedClip],
) -> TrainingPlan:
    both, shared = [*trained, *held_out], head.shared
    left_out = Counter(found.left_out) + Counter({"beyond the disk": len(found.clips) - len(both)})
    parameters = sum(tensor.numel() for tensor in head.tensors.values())
    weights = sum({id(one): one.nbytes for one in (shared.embedding, shared.output)}.values())
    gpu, longest = shared.embedding.device.type != "cpu", max(map(rows_of, both))
    return TrainingPlan(
        str(found.profile.models.target),
        len(trained),
        len(held_out),
        left_out,
        found.prompts,
        sum(map(states.bytes_of, both)),
        training_bytes(parameters, weights, shared.vocabulary, head.hidden, head.heads, longest, gpu=gpu),
        parameters,
        len(states) > 0,
        states.folder,
    )


def _kept(
    head: Path, target: str, digest: str, clips: int, measured: Sequence[MeasuredClip], out: Path | None
) -> Trained:
    """Copy a head to where it is used, and return the end."""
    found, kind = HeadEvaluation.of(measured), head_kind(str(head)) or "dflash"
    speeds = found.tau, found.decode, found.end_to_end
    facts = OwnHead(head_name(target, digest), target, digest, kind, today(), clips, *speeds)
    try:
        kept = add_head(head, facts) if facts.gains and digest != "unknown" else None
        if out is not None:
            copy_head(head, out)
    except OSError as error:
        raise OutputError(f"{out or 'the head'}: cannot be written: {error.strerror}") from None
    return Trained(found, measured, kept, out)


def measure_head(
    head: Path,
    profile: Profile,
    clips: Sequence[CaptionedClip],
    unreadable: list[VidspecError],
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
    kind = head_kind(str(head)) or "dflash"
    drafting = profiles.override(profile, {**drafting_keys(str(head), kind), **DRAFTING})
    with Captioner(drafting, target, None, head=load_head(kind, str(head), target, placement)) as captioner:
        yield from measure(captioner, clips, unreadable)


def training_bytes(numbers: int, shared: int, vocabulary: int, hidden: int, heads: int, text: int, *, gpu: bool) -> int:
    """Return about the most bytes that training a head takes, the libraries aside.

    Weights, gradients, two moments and the average in float32, on a GPU a copy and its gradients in 16 bits; the
    target's embedding and output head; six times the logits of a step, ten times its attention scores, and the inner
    rows of its blocks.

    Args:
        numbers: of the head.
        shared: bytes of the target's embedding and output head.
        vocabulary: of the target.
        hidden, heads: width and attention heads of the head.
        text: rows of the longest text.
        gpu: True for a head on a GPU.
    """
    rows = (GPU_CLIPS if gpu else CLIPS) * BLOCKS * BLOCK
    step = 6 * 4 * rows * vocabulary + 10 * 4 * rows * heads * text + 16 * rows * numbers // (3 * hidden)
    return shared + numbers * (24 if gpu else 20) + step + (64 << 20)


def _release() -> None:
    """Return the memory of what is no longer referred to."""
    gc.collect()
    memory.release_memory()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
