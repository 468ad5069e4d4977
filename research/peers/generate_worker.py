"""``generate`` of ``transformers`` on padded batches as a contender over a folder.

``python -m research.peers.generate_worker JSON`` serves a :class:`~research.peers.answering.JsonWorker`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from research.peers.answering import Functions, serve_functions
from research.peers.generate import PeerFailed, generate_batch, read_frames
from research.peers.recorded import read_ahead, write_captions
from research.peers.steady import SteadyRate
from research.process_memory import peak_bytes
from research.stock_inputs import stock_inputs
from vidspec.config import labels
from vidspec.config.schema import Profile
from vidspec.models import loading
from vidspec.models.base import Pixels, VisionOutput
from vidspec.models.placement import resolve_placement


class GenerateContender:
    """Runs ``generate`` on left-padded batches; the next batch is read meanwhile.

    Every row runs until the last one of its batch ends.

    Args:
        profile: names the model, the frames and the prompt.
    """

    def __init__(self, profile: Profile) -> None:
        wanted = profile.models
        if wanted.threads is not None:
            torch.set_num_threads(wanted.threads)
        name = str(loading.embedded_folder(wanted.pair, "target")) if wanted.pair else wanted.target or ""
        self.profile = profile
        self.target: Any = loading.load_model(name, resolve_placement(wanted.device, wanted.dtype, "stock"))
        self._shapes: dict[tuple[int, int, int], VisionOutput] = {}

    def run(self, clips: Sequence[str], batch: int) -> dict[str, object]:
        """Caption a folder of clips; see :func:`~research.peers.recorded.write_captions`."""
        return {**write_captions(self._caption_clips(clips, batch)), "rows": float(batch), "device_bytes": peak_bytes()}

    def decode(self, clips: Sequence[str], batch: int) -> dict[str, float]:
        """Return tokens and seconds of decoding alone; see :class:`~research.peers.steady.SteadyRate`."""
        return SteadyRate.combine(self._measure_rate(some) for some in _groups(clips, batch))

    @property
    def functions(self) -> Functions:
        return {"run": self.run, "decode": self.decode}

    def _caption_clips(self, clips: Sequence[str], batch: int) -> Iterator[tuple[str, str, list[int]]]:
        for some, read in zip(_groups(clips, batch), read_ahead(self._read, _groups(clips, batch), 1), strict=True):
            rows, _ = self._generate(read)
            for path, row in zip(some, rows, strict=True):
                yield path, self.target.tokenizer.decode(row, skip_special_tokens=True).strip(), row

    def _measure_rate(self, clips: Sequence[str]) -> SteadyRate:
        rows, times = self._generate(self._read(clips))
        counted = SteadyRate(len(rows))
        for at, when in enumerate(times):
            for number, row in enumerate(rows):
                if at < len(row):
                    counted.emitted(when, number, 1)
            if any(at == len(row) - 1 for row in rows):
                counted.finished(when)
        return counted

    def _read(self, paths: Sequence[str]) -> list[Pixels]:
        if self.profile.video.audio and self.target.max_sound_s is not None:
            raise PeerFailed("generate in batches takes no sound here: --no-audio compares what is seen alone")
        return [self.target.preprocess(read_frames(path, self.profile)) for path in paths]

    @torch.inference_mode()
    def _generate(self, clips: Sequence[Pixels]) -> tuple[list[list[int]], list[float]]:
        """Return the token ids of each clip, and the time of each step.

        Raises:
            PeerFailed: ``generate`` raised an error, or the clips cannot be put into one batch.
        """
        known = self.target.tokenizer.pad_token_id
        pad = int(min(self.target.eos) if known is None else known)
        failed = "generate in batches of transformers fails"
        try:
            inputs = pad_batch([self._generate_inputs(pixels) for pixels in clips], pad)
        except ValueError as error:
            raise PeerFailed(f"{failed}: {error}") from error
        limit = self.profile.generate.max_new_tokens
        rows, times = generate_batch(failed, self.target, inputs, limit, pad_token_id=pad)
        return [self._cut_at_end(row) for row in rows], times

    def _generate_inputs(self, pixels: Pixels) -> dict[str, torch.Tensor]:
        """Return the inputs of ``generate`` for one clip. The visual tokens are counted once per shape."""
        generate = self.profile.generate
        if pixels.grid not in self._shapes:
            self._shapes[pixels.grid] = self.target.encode(pixels)
        seen = replace(self._shapes[pixels.grid], seconds=pixels.seconds)
        found: dict[str, torch.Tensor] = stock_inputs(
            self.target, pixels, self.target.prefix(seen, generate.prompt, generate.system)
        )
        return found

    def _cut_at_end(self, row: list[int]) -> list[int]:
        """Return a row up to its end token."""
        end = next((at for at, token in enumerate(row) if token in self.target.eos), len(row) - 1)
        return row[: end + 1]


def _groups(clips: Sequence[str], count: int) -> list[Sequence[str]]:
    """Split ``clips`` into groups of ``count``; the last may be smaller."""
    return [clips[first : first + count] for first in range(0, len(clips), count)]


def pad_batch(inputs: Sequence[Mapping[str, torch.Tensor]], pad: int) -> dict[str, torch.Tensor]:
    """Return inputs of several clips as one batch; entries per token are padded on the left.

    Args:
        inputs: of each clip: ``input_ids`` (1, L), other tensors of that shape, and pixels with facts about them, clips
            one after the other.
        pad: padding of ``input_ids``; elsewhere it is 0.

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


def main(about: str) -> None:
    """Serve requests. ``about`` is JSON: the ``label`` of a profile, and its ``overrides``."""
    serve_functions(lambda: GenerateContender(labels.load(**json.loads(about))).functions)


if __name__ == "__main__":
    main(sys.argv[1])
