"""The same weights under ``generate`` of ``transformers``: plain, assisted by the draft, and prompt lookup."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from research.stock_inputs import stock_inputs
from vidspec import video
from vidspec.bench.loaded import LoadedModels
from vidspec.bench.turns import ContenderFailed
from vidspec.config.schema import Profile
from vidspec.errors import UsageError
from vidspec.events.record import Caption
from vidspec.models import loading
from vidspec.models.placement import Placement
from vidspec.models.video_language_model import VideoLanguageModel

#: Names in the table: the ways to call ``generate``.
PEERS = ("generate", "generate-assisted", "generate-prompt-lookup")


class PeerFailed(ContenderFailed):
    """A peer cannot caption this clip in this way."""


def require_greedy(name: str, profile: Profile) -> None:
    """Check that a profile decodes greedily without penalties, as peers do; otherwise texts and times do not compare.

    Raises:
        PeerFailed: it samples or penalises tokens.
    """
    if profile.generate.temperature > 0:
        raise PeerFailed(f"{name} takes the likeliest tokens, and {profile.name} draws")
    if profile.generate.penalties:
        raise PeerFailed(f"{name} penalises no tokens, and {profile.name} does")


def peer_window(profile: Profile) -> int:
    """Return the draft window of a peer."""
    gamma = profile.draft.gamma
    return gamma if isinstance(gamma, int) and gamma > 0 else 5


def read_frames(path: str | Path, profile: Profile, max_audio_s: float | None = None) -> video.Clip:
    """Read the frames a profile shows of a file, with ``max_audio_s`` seconds of audio for a model that takes it."""
    wanted = profile.video
    return video.read(path, **wanted.arguments, sound=max_audio_s if wanted.audio else None)


def peer_record(
    name: str, path: str | Path, target: VideoLanguageModel, tokens: list[int], first: float, decode: float
) -> Caption:
    """Return the record of a peer's caption, with the seconds to the first token and from there to the last."""
    return Caption(
        path=str(path),
        caption=target.tokenizer.decode(tokens, skip_special_tokens=True).strip(),
        token_ids=tokens,
        lossless=True,
        profile=name,
        timings={"time_to_first_token": first, "decode": decode, "end_to_end": first + decode},
    )


def generate_batch(
    failed: str, adapter: Any, inputs: Mapping[str, torch.Tensor], limit: int, **options: object
) -> tuple[list[list[int]], list[float]]:
    """Generate greedily; return at most ``limit`` new token ids per row, and the time of each step.

    Args:
        failed: start of error messages.
        adapter: its stock model generates.
        inputs: ``input_ids`` (rows, L), and further inputs of ``generate``.
        limit: new tokens.
        options: further arguments of ``generate``.

    Raises:
        PeerFailed: ``generate`` raised an error.
    """
    clock = FirstTokenClock()
    try:
        out = adapter.model.generate(**inputs, max_new_tokens=limit, do_sample=False, streamer=clock, **options)
    except (ValueError, RuntimeError, TypeError) as error:
        # Prompt lookup, for one, may propose placeholders of the video, for which there is no picture.
        raise PeerFailed(f"{failed}: {error}") from error
    return out[:, inputs["input_ids"].shape[1] :].tolist(), clock.times[1:-1]


class FirstTokenClock:
    """A streamer that records the time of each call; the prompt comes first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        self.times.append(time.perf_counter())


@dataclass
class GeneratePeer:
    """One way of calling ``generate``.

    Args:
        name: one of :data:`PEERS`.
        profile: names the frames and the prompt.
        target, draft: adapters whose stock models use an attention of ``transformers``' own.
    """

    name: str
    profile: Profile
    target: VideoLanguageModel
    draft: VideoLanguageModel

    @torch.inference_mode()
    def caption(self, path: str | Path) -> Caption:
        """Caption a clip; timings have the names and bounds of :class:`~vidspec.captioner.Captioner`'s.

        Raises:
            PeerFailed: ``generate`` raised an error.
        """
        require_greedy(self.name, self.profile)
        begun, generate = time.perf_counter(), self.profile.generate
        adapter: Any = self.target
        clip = read_frames(path, self.profile, adapter.max_sound_s)
        pixels = adapter.preprocess(clip)
        paused = time.perf_counter()
        # Encoding gives the number of visual tokens; ``generate`` encodes again, in its own time.
        inputs = stock_inputs(adapter, pixels, adapter.prefix(adapter.encode(pixels), generate.prompt, generate.system))
        begun += time.perf_counter() - paused
        options: dict[str, object] = {}
        if self.name == "generate-assisted":
            options = {"assistant_model": self.draft.model}
        elif self.name == "generate-prompt-lookup":
            options = {"prompt_lookup_num_tokens": peer_window(self.profile)}
        failed = f"{self.name} of transformers fails on {path}"
        rows, times = generate_batch(failed, adapter, inputs, generate.max_new_tokens, **options)
        finished = time.perf_counter()
        return peer_record(self.name, path, self.target, rows[0], times[0] - begun, finished - times[0])


def generate_peers(loaded: LoadedModels, profile: Profile) -> dict[str, GeneratePeer]:
    """Return the peers of ``transformers``: the same weights, loaded again with its own attention.

    Args:
        loaded: our models.
        profile: names the frames and the prompt.

    Raises:
        UsageError: the models have quantised weights, or no draft.
    """
    first, second = loaded.source.names
    if loaded.source.weights is not None:
        raise UsageError("transformers has no target with --weights", hint="--no-generate")
    if second is None or loaded.named_head:
        raise UsageError("the peers from transformers need a draft", hint="--draft, or --no-generate")
    stock = Placement(loaded.where.device, loaded.where.dtype, "stock")
    pair = loading.load_model(first, stock), loading.load_model(second, stock)
    return {name: GeneratePeer(name, profile, *pair) for name in PEERS}
