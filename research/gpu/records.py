"""A folder at a published size with random weights, from decoded frames to records; and training of a head there.

Texts have one length, and each drafted token is accepted with a given probability. Frames are noise. All is the
product's own: threads that preprocess, admission, the loop, events, records; states, steps and validation.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from research.gpu.results import Results, without_kind
from research.gpu.rounds import Forced
from research.gpu.sizes import gib, release, tower_config
from research.process_memory import PeakMemory
from research.random_decoder import rope_parameters
from research.random_heads import random_dflash
from research.random_init import random_model
from research.ready_clips import ReadyClips
from research.sizes import SIZES, Tower
from vidspec.bench.tables import table
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.decoding.many import ReadAhead
from vidspec.engine.device import synchroniser
from vidspec.errors import VidspecError
from vidspec.events.events import Finished
from vidspec.models.loading import embedded_folder
from vidspec.models.placement import resolve_placement
from vidspec.models.request import CaptionRequest
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.training.head import SharedWeights, TrainedBlocks
from vidspec.training.states import CaptionedClip, StatesFolder, write_states
from vidspec.training.steps import HeadTraining, TrainingLimits
from vidspec.video import Clip


@dataclass(frozen=True)
class RecordsPlan:
    """What is measured.

    Attributes:
        size, tower: of the model, Qwen2.5-VL's or one like it.
        batches: clips at once; twice as many are captioned.
        betas: acceptance of a block head's tokens; 0 for plain decoding.
        gamma: tokens of its windows.
        frames, side: of a clip; 20 frames of 392 pixels give 1,960 visual tokens.
        tokens: of a text.
        trained, steps: captions that are learned by heart, and most steps.
    """

    size: str
    tower: Tower
    batches: Sequence[int] = (16, 8, 32)
    betas: Sequence[float] = (0.0, 0.8, 0.7)
    gamma: int = 7
    frames: int = 20
    side: int = 392
    tokens: int = 128
    trained: int = 16
    steps: int = 300


@dataclass(frozen=True)
class Served:
    """Times of one folder.

    Attributes:
        beta, batch: acceptance, 0 for plain decoding, and clips at once.
        clips_per_hour: from the first clip that is asked for to the last record.
        waiting: share of that time in which no clip was there, so that the models waited for frames.
        encoding, encodes: share of the time of tower passes and of the preprocessing on the loop, and their number.
        prompts: mean of the clips whose prompts a pass read, of passes with any.
        host: seconds of the host in a turn beyond its passes, the mean.
        peak: bytes of device memory.
    """

    model: str
    beta: float
    batch: int
    clips_per_hour: float
    waiting: float
    encoding: float
    encodes: int
    prompts: float
    host: float
    peak: int | None


@dataclass(frozen=True)
class Training:
    """Training of a head of two blocks on captions that are also validated.

    Attributes:
        parameters: of the head.
        states_per_s: rows of states that are read and written in a second.
        step: seconds of a step, the mean without the first ten; one of validation counts as a part.
        first, last: accepted tokens of the first and the last validation.
        peak: bytes of device memory in the steps.
    """

    model: str
    parameters: int
    states_per_s: float
    step: float
    steps: int
    first: float
    last: float
    peak: int | None


def published_model(plan: RecordsPlan, device: torch.device, dtype: torch.dtype) -> VideoLanguageModel:
    """Return a Qwen2.5-VL with random weights, the built-in pair's tokenizer and no end of a text."""
    size, like = SIZES[plan.size], embedded_folder("embedded-qwen", "target")
    given = json.loads((like / "config.json").read_text(encoding="utf-8"))
    config = tower_config(plan.tower) | {name: value for name, value in given.items() if name.endswith("_token_id")}
    config["text_config"] = {
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "intermediate_size": size.inner,
        "vocab_size": size.vocabulary,
        "rope_parameters": rope_parameters(size),
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        model = random_model(file, resolve_placement(str(device), str(dtype).removeprefix("torch.")), like)
    model.eos = frozenset()
    return model


def clips_of(plan: RecordsPlan, count: int) -> list[CaptionRequest]:
    """Return requests with frames of noise."""
    noise, shape = np.random.default_rng(0), (plan.frames, plan.side, plan.side, 3)
    frames = [noise.integers(0, 256, shape, np.uint8) for _ in range(min(count, 8))]
    clips = itertools.islice(itertools.cycle(frames), count)
    return [CaptionRequest(str(at), Clip.of(shown, range(plan.frames)), key=str(at)) for at, shown in enumerate(clips)]


def measure_records(plan: RecordsPlan, device: torch.device, dtype: torch.dtype, results: Results) -> None:
    """Measure the folder with all numbers of clips, a line each, until the time is over."""
    model = published_model(plan, device, dtype)
    head = random_dflash(model, SIZES[plan.size])
    for batch, beta in itertools.product(plan.batches, plan.betas):
        what = f"{plan.size}, {batch} clips, beta {beta:g}"
        if results.begin(what, 15):
            with results.guarded(what), closing(_captioner(plan, model, head if beta else None)) as captioner:
                if beta:
                    captioner.client.setup.acceptance = Forced(beta, batch)
                results.add("served", **asdict(_serve(plan, captioner, beta, batch, device)))


def _captioner(plan: RecordsPlan, model: VideoLanguageModel, head: object = None) -> Captioner:
    keys: dict[str, object] = {"models.target": "random", "generate.max_new_tokens": plan.tokens}
    keys |= {"video.frames": plan.frames, "generate.stop_loops": False}
    if head is not None:
        keys |= {"models.draft": "random", "draft.gamma": plan.gamma, "draft.options.visual": "none"}
    profile = profiles.load("ar" if head is None else "dflash", keys, env={})
    return Captioner(profile, model, None, head=head)  # type: ignore[arg-type]


def _serve(plan: RecordsPlan, captioner: Captioner, beta: float, batch: int, device: torch.device) -> Served:
    client, peak = captioner.client, PeakMemory(device)
    list(client.serve(ReadyClips(clips_of(plan, batch)), batch=batch))  # kernels, captured passes
    loop = client.thread.loop
    turn, passed, encode = loop.turn, loop.on_pass, loop._encode
    turns, passes, encodes, prompts = list[float](), list[float](), list[float](), list[int]()

    def turned(patience: float | None = None) -> object:
        begun = time.perf_counter()
        try:
            return turn(patience)
        finally:
            turns.append(time.perf_counter() - begun)

    def encoded(waiting: object) -> object:
        begun = time.perf_counter()
        try:
            return encode(waiting)  # type: ignore[arg-type]
        finally:
            encodes.append(time.perf_counter() - begun)

    def on_pass(found: object) -> None:
        passes.append(found.seconds * found.passes)  # type: ignore[attr-defined]
        prompts.extend([found.prompts] if found.prompts else [])  # type: ignore[attr-defined]
        passed(found)  # type: ignore[arg-type]

    loop.turn, loop.on_pass, loop._encode = turned, on_pass, encoded  # type: ignore[method-assign,assignment]
    peak.reset()
    count, begun = 0, time.perf_counter()
    try:
        with closing(ReadAhead(clips_of(plan, 2 * batch), client.inputs.read_ahead, ahead=batch)) as source:
            while not source.over:
                with closing(client.serve(source, batch=batch, wake=source.wake)) as news:
                    for _, one in news:
                        if isinstance(one, Exception):
                            raise one
                        count += isinstance(one, Finished)
        seconds = time.perf_counter() - begun
    finally:
        loop.turn, loop.on_pass, loop._encode = turn, passed, encode  # type: ignore[method-assign]
        client.inputs.vision.end_feed()
    if count != 2 * batch:
        raise RuntimeError(f"{count} records of {2 * batch} clips")
    host = (sum(turns) - sum(passes) - sum(encodes)) / len(turns)
    waiting, encoding = 1 - sum(turns) / seconds, sum(encodes) / seconds
    together = sum(prompts) / len(prompts)
    hourly = 3600 * count / seconds
    return Served(plan.size, beta, batch, hourly, waiting, encoding, len(encodes), together, host, peak.read())


def measure_training(plan: RecordsPlan, device: torch.device, dtype: torch.dtype, results: Results) -> None:
    """Caption clips of noise, read their states, and train a head of two blocks on them."""
    if not results.begin(f"{plan.size} training", 30):
        return
    with results.guarded(f"{plan.size} training"), tempfile.TemporaryDirectory() as folder:
        model, wait = published_model(plan, device, dtype), synchroniser(device)
        clips = _captions(plan, model)
        head = TrainedBlocks.new(model, SharedWeights.of(model), 2, 0)
        file = StatesFolder(Path(folder), head.taps, head.hidden, dtype, one_axis=head.one_axis)
        begun, unreadable = time.perf_counter(), list[VidspecError]()
        for _ in write_states(model, clips, file, unreadable):
            pass
        if unreadable:
            raise unreadable[0]
        keys = [clip.key for clip in clips]
        rate = sum(len(file.read(key).states) for key in keys) / (time.perf_counter() - begun)
        del model
        release(device)
        peak, limits = PeakMemory(device), TrainingLimits(max(0.1, results.seconds_left / 60 - 0.2), plan.steps)
        peak.reset()
        training = HeadTraining(head, file, keys, keys, Path(folder), limits=limits)
        times, taus = [time.perf_counter()], list[float]()
        for progress in training.run():
            wait()
            times.append(time.perf_counter())
            taus += [] if progress.tau is None else [progress.tau]
        steps, warm = len(times) - 1, min(10, len(times) - 2)
        step = (times[-1] - times[warm]) / (steps - warm)
        parameters = sum(tensor.numel() for tensor in head.tensors.values())
        found = Training(plan.size, parameters, rate, step, steps, taus[0], taus[-1], peak.read())
        results.add("training", **asdict(found))


def _captions(plan: RecordsPlan, model: VideoLanguageModel) -> list[CaptionedClip]:
    """Return captions by plain decoding, with their frames."""
    requests = {request.path: request for request in clips_of(plan, plan.trained)}
    with closing(_captioner(plan, model)) as captioner:
        generate, texts = captioner.client.profile.generate, dict[str, tuple[int, ...]]()
        for key, one in captioner.client.serve(ReadyClips(requests.values()), batch=min(16, plan.trained)):
            if isinstance(one, Exception):
                raise one
            if isinstance(one, Finished):
                texts[str(key)] = tuple(one.caption.token_ids)
    asked = {key: replace(one, prompt=generate.prompt, system=generate.system) for key, one in requests.items()}
    return [CaptionedClip(key, key, asked[key], None, text) for key, text in texts.items()]


def small_plan(size: str, tower: Tower) -> RecordsPlan:
    """Return a plan for a smoke run on a CPU."""
    return RecordsPlan(size, tower, (2,), (0.0, 1.0), 3, 4, 56, 10, 3, 12)


def markdown(rows: Sequence[dict[str, object]]) -> str:
    """Return tables of a run's lines."""
    served = [Served(**without_kind(row)) for row in rows if row["kind"] == "served"]  # type: ignore[arg-type]
    trained = [Training(**without_kind(row)) for row in rows if row["kind"] == "training"]  # type: ignore[arg-type]
    left = [(str(row["what"]), str(row["why"])) for row in rows if row["kind"] == "left out"]
    return "\n\n".join([*_tables(served, trained), *([table(["left out", "why"], left)] if left else [])])


def _tables(served: Sequence[Served], trained: Sequence[Training]) -> Iterator[str]:
    if served:
        heads = ["model", "acceptance", "clips at once", "clips / hour", "waits for frames", "vision", "vision passes"]
        lines = [
            (
                one.model,
                f"{one.beta:g}" if one.beta else "plain",
                str(one.batch),
                f"{one.clips_per_hour:,.0f}",
                f"{one.waiting:.0%}",
                f"{one.encoding:.0%}",
                str(one.encodes),
                f"{one.prompts:.1f}",
                f"{1e3 * one.host:.2f} ms",
                gib(one.peak),
            )
            for one in served
        ]
        yield table([*heads, "prompts / pass", "host / turn", "peak"], lines)
    if trained:
        heads = ["model", "parameters", "rows of states / s", "step", "steps", "tau at first", "tau at last", "peak"]
        learned = [
            (
                one.model,
                f"{one.parameters:,}",
                f"{one.states_per_s:.0f}",
                f"{1e3 * one.step:.0f} ms",
                str(one.steps),
                f"{one.first:.2f}",
                f"{one.last:.2f}",
                gib(one.peak),
            )
            for one in trained
        ]
        yield table(heads, learned)
