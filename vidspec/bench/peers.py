"""The same weights under ``transformers``' own ``generate``: plain, assisted by the draft, and prompt lookup."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vidspec import video
from vidspec.bench.steady import Steady
from vidspec.errors import GenerationError
from vidspec.models.base import Pixels, Seen, VideoLanguageModel
from vidspec.profile.profiles import Profile
from vidspec.telling.record import Caption
from vidspec.video.base import Clip

__all__ = ["PEERS", "Batched", "Peer", "PeerFailed", "padded"]

#: Name in the table, and what ``generate`` is called with.
PEERS = ("generate", "generate-assisted", "generate-prompt-lookup")


class PeerFailed(GenerationError):
    """``generate`` cannot caption this clip in this way."""


class _Clock:
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
        begun = time.perf_counter()
        wanted, generate = self.profile.video, self.profile.generate
        clip = video.read(path, frames=wanted.frames, fps=wanted.fps, max_pixels=wanted.max_pixels)
        adapter: Any = self.target
        model = adapter.model
        pixels = adapter.preprocess(clip)
        paused = time.perf_counter()
        # How many visual tokens there are is known from looking; generate looks again, in its own time.
        inputs = adapter.stock_inputs(pixels, adapter.prefix(adapter.see(pixels), generate.prompt, generate.system))
        begun += time.perf_counter() - paused
        clock = _Clock()
        options: dict[str, Any] = {"streamer": clock}
        if self.name == "generate-assisted":
            options = {"assistant_model": self.draft.model, **options}  # type: ignore[attr-defined]
        elif self.name == "generate-prompt-lookup":
            options = {"prompt_lookup_num_tokens": self.profile.draft.gamma or 5, **options}
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


@dataclass
class Batched:
    """``generate`` for several clips at once: prompts padded on the left, every row until the last one ends.

    Args:
        profile: says which prompt.
        target: adapter whose stock model uses an attention of ``transformers``' own.
    """

    profile: Profile
    target: VideoLanguageModel
    _shapes: dict[tuple[int, int, int], Seen] = field(default_factory=dict)

    @torch.inference_mode()
    def captions(self, clips: Sequence[tuple[str, Clip, Pixels]], counted: Steady | None = None) -> Iterator[Caption]:
        """Caption clips together.

        Args:
            clips: paths, frames, and what the model's preprocessing made of them.
            counted: is told of every token.

        Raises:
            PeerFailed: ``generate`` raised an error, or the clips cannot be put into one batch.
        """
        adapter: Any = self.target
        clock = _Clock()
        generate = self.profile.generate
        try:
            inputs = padded([self._inputs(pixels) for _, _, pixels in clips], self._pad)
            out = adapter.model.generate(
                **inputs,
                max_new_tokens=generate.max_new_tokens,
                do_sample=False,
                pad_token_id=self._pad,
                streamer=clock,
            )
        except (ValueError, RuntimeError, TypeError) as error:
            raise PeerFailed(f"generate in batches of transformers fails: {error}") from error
        rows = [self._ended(row) for row in out[:, inputs["input_ids"].shape[1] :].tolist()]
        if counted is not None:
            for at, when in enumerate(clock.times[1:-1]):
                for number, row in enumerate(rows):
                    if at < len(row):
                        counted.emitted(when, number, 1)
                if any(at == len(row) - 1 for row in rows):
                    counted.finished(when)
        for (path, _, _), row in zip(clips, rows, strict=True):
            text = self.target.tokenizer.decode(row, skip_special_tokens=True).strip()
            yield Caption(path=path, caption=text, token_ids=row, lossless=True, profile="generate-batched")

    @property
    def _pad(self) -> int:
        known = self.target.tokenizer.pad_token_id
        return int(min(self.target.eos) if known is None else known)

    def _inputs(self, pixels: Pixels) -> dict[str, Any]:
        """What ``generate`` takes for one clip. How many visual tokens there are is learnt once for each shape."""
        adapter, generate = self.target, self.profile.generate
        if pixels.grid not in self._shapes:
            self._shapes[pixels.grid] = adapter.see(pixels)
        seen = replace(self._shapes[pixels.grid], seconds=pixels.seconds)
        return adapter.stock_inputs(pixels, adapter.prefix(seen, generate.prompt, generate.system))  # type: ignore[attr-defined, no-any-return]

    def _ended(self, row: list[int]) -> list[int]:
        """A row up to its own end."""
        end = next((at for at, token in enumerate(row) if token in self.target.eos), len(row) - 1)
        return row[: end + 1]


def padded(inputs: Sequence[Mapping[str, torch.Tensor]], pad: int) -> dict[str, torch.Tensor]:
    """Inputs of several clips as one batch; what has an entry for each token gets more on its left.

    Args:
        inputs: of each clip: ``input_ids`` (1, L), whatever else has that shape, and pixels with facts about them,
            clips one after the other.
        pad: stands in ``input_ids`` where there is nothing; elsewhere it is 0.

    Raises:
        ValueError: the pixels of the clips do not fit together.
    """
    width = max(one["input_ids"].shape[1] for one in inputs)
    whole = {}
    for key in inputs[0]:
        rows = [one[key] for one in inputs]
        if all(row.shape == one["input_ids"].shape for row, one in zip(rows, inputs, strict=True)):
            filler = pad if key == "input_ids" else 0
            rows = [torch.nn.functional.pad(row, (width - row.shape[1], 0), value=filler) for row in rows]
        if len({row.shape[1:] for row in rows}) > 1:
            raise ValueError(f"clips with {key} of {' and '.join(str(tuple(row.shape)) for row in rows[:2])}")
        whole[key] = torch.cat(rows)
    return whole
