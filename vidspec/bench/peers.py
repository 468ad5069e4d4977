"""The same weights under ``transformers``' own ``generate``: plain, assisted by the draft, and prompt lookup."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vidspec import video
from vidspec.config.profiles import Profile
from vidspec.errors import GenerationError
from vidspec.events.record import Caption
from vidspec.models.base import VideoLanguageModel

__all__ = ["PEERS", "Clock", "Peer", "PeerFailed", "frames_of", "must_be_greedy", "window"]

#: Name in the table, and what ``generate`` is called with.
PEERS = ("generate", "generate-assisted", "generate-prompt-lookup")


class PeerFailed(GenerationError):
    """A peer cannot caption this clip in this way."""


def must_be_greedy(name: str, profile: Profile) -> None:
    """Peers take the likeliest token: where a profile draws, their texts and times are not to be held against its.

    Raises:
        PeerFailed: it draws.
    """
    if profile.generate.temperature > 0:
        raise PeerFailed(f"{name} is asked for the likeliest tokens, and {profile.name} draws")


def window(profile: Profile) -> int:
    """Tokens that a peer is to draft at once."""
    gamma = profile.draft.gamma
    return gamma if isinstance(gamma, int) and gamma > 0 else 5


def frames_of(path: str | Path, profile: Profile, hears: float | None = None) -> video.Clip:
    """What a profile shows of a file, to a model that ``hears`` so many seconds with their sound."""
    wanted = profile.video
    return video.read(path, **wanted.arguments, sound=hears if wanted.audio else None)


class Clock:
    """A streamer that notes when the first token came; the prompt is the first thing it is given."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        self.times.append(time.perf_counter())


@dataclass
class Peer:
    """One way of calling ``generate``.

    Args:
        name: one of :data:`PEERS`.
        profile: says which frames and which prompt.
        target, draft: adapters whose stock models use an attention of ``transformers``' own.
    """

    name: str
    profile: Profile
    target: VideoLanguageModel
    draft: VideoLanguageModel

    @torch.inference_mode()
    def caption(self, path: str | Path) -> Caption:
        """Caption a clip; timings have the same names and borders as :class:`~vidspec.captioner.Captioner`'s.

        Raises:
            PeerFailed: ``generate`` raised an error.
        """
        must_be_greedy(self.name, self.profile)
        begun, generate = time.perf_counter(), self.profile.generate
        adapter: Any = self.target
        clip = frames_of(path, self.profile, adapter.hears)
        model = adapter.model
        pixels = adapter.preprocess(clip)
        paused = time.perf_counter()
        # How many visual tokens there are is known from looking; generate looks again, in its own time.
        inputs = adapter.stock_inputs(pixels, adapter.prefix(adapter.see(pixels), generate.prompt, generate.system))
        begun += time.perf_counter() - paused
        clock = Clock()
        options: dict[str, Any] = {"streamer": clock}
        if self.name == "generate-assisted":
            options = {"assistant_model": self.draft.model, **options}  # type: ignore[attr-defined]
        elif self.name == "generate-prompt-lookup":
            options = {"prompt_lookup_num_tokens": window(self.profile), **options}
        try:
            out = model.generate(**inputs, max_new_tokens=generate.max_new_tokens, do_sample=False, **options)
        except (ValueError, RuntimeError, TypeError) as error:
            # Prompt lookup, for one, may propose placeholders of the video, for which there is no picture.
            raise PeerFailed(f"{self.name} of transformers fails on {path}: {error}") from error
        finished = time.perf_counter()
        tokens = out[0, inputs["input_ids"].shape[1] :].tolist()
        first = clock.times[1]
        return Caption(
            path=str(path),
            caption=self.target.tokenizer.decode(tokens, skip_special_tokens=True).strip(),
            token_ids=tokens,
            lossless=True,
            profile=self.name,
            timings={
                "time_to_first_token": first - begun,
                "decode": finished - first,
                "end_to_end": finished - begun,
            },
        )
