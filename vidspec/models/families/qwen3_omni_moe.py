"""Qwen3-Omni: the thinker, with Qwen3-VL's tower and an audio tower; the talker is not loaded.

Sound is interleaved with the frames by time, and positions count time in fractions of a second, unrounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from vidspec.models.base import VisionOutput, families
from vidspec.models.families.qwen2_5_omni import Qwen25Omni
from vidspec.models.families.qwen2_5_vl import seconds_per_step
from vidspec.models.families.qwen3_vl import CHAT_TEMPLATE
from vidspec.models.memory_estimate import BUDGET
from vidspec.models.preprocess import GridRules, ProcessorConfig
from vidspec.models.vision import token_bytes


@families.register("qwen3_omni_moe")
class Qwen3OmniMoe(Qwen25Omni):
    """A ``Qwen3OmniMoeThinkerForConditionalGeneration``; its prompt is ``<|im_start|>user\\n<|vision_start|>{video}
    <|vision_end|>{prompt}<|im_end|>\\n<|im_start|>assistant\\n``.

    With sound the video's place is ``<|vision_start|><|audio_start|>{video and sound}<|audio_end|><|vision_end|>``: the
    visual tokens of each temporal step before the audio tokens from its time on.
    """

    family = "qwen3_omni_moe"
    chat_template: ClassVar[str] = CHAT_TEMPLATE
    default_rules: ClassVar[GridRules] = GridRules(
        min_pixels=128 * 32**2, max_pixels=768 * 32**2, max_video_tokens=128_000
    )

    def set_up(self, processor: ProcessorConfig) -> None:
        super().set_up(processor)
        config = self.model.config
        #: Frames of the spectrum that the convolutions see together.
        self.piece = 2 * int(config.audio_config.n_window)
        # The library sets no limit. More sound than this does not fit the model's context.
        self.max_sound_s = config.text_config.max_position_embeddings / self.times.rate

    def audio_tokens(self, samples: int) -> int:
        if samples <= self.feature_extractor.n_fft // 2:  # less than the spectrum's margins mirror
            return 0
        return self._tokens_of(samples // self.feature_extractor.hop_length)

    def _tokens_of(self, frames: int) -> int:
        """Return the tokens of so many spectrum frames: three convolutions halve each piece, rounded up."""
        whole, rest = divmod(frames, self.piece)
        return whole * _halved(self.piece) + _halved(rest)

    def spectrum(self, sound: NDArray[np.float32]) -> torch.Tensor:
        """Return the log-mel spectrum (bins, F) of a sound, which is neither padded nor cut."""
        rate = self.feature_extractor.sampling_rate
        features = self.feature_extractor(
            [sound], sampling_rate=rate, padding="longest", truncation=False, return_tensors="pt"
        )
        return features["input_features"][0]  # type: ignore[no-any-return]

    def split_spectrum(self, sound: torch.Tensor) -> Iterator[torch.Tensor]:
        """Split a spectrum into parts of whole attention windows; no part but the only one is less than a piece."""
        config = self.model.config.audio_config
        pieces = max(1, int(config.n_window_infer) // self.piece)
        convolved = 2 * 4 * config.downsample_hidden_size * (config.num_mel_bins // 2) * (self.piece // 2)
        window_bytes = pieces * (_halved(self.piece) * token_bytes(config) + convolved)
        size = pieces * self.piece * max(1, BUDGET // window_bytes)
        start, frames = 0, sound.shape[1]
        while start < frames:
            end = start + size
            if frames - end < self.piece:  # the convolutions pad a piece to the longest in the call
                end = frames
            yield sound[:, start:end]
            start = end

    def order(self, vision: VisionOutput, audio: int) -> list[tuple[bool, range]]:
        steps = vision.frame.tolist()  # in float64, as the library's processor computes
        interval = seconds_per_step(vision.seconds) * self.times.rate
        return merge_by_time([step * interval for step in steps], audio)

    def positions(
        self, token_ids: torch.Tensor, vision: VisionOutput | None, rows: torch.Tensor
    ) -> tuple[torch.Tensor, float]:
        """Return float32 positions (3, 1, L), as ``transformers`` 5.24 numbers them.

        Text advances all axes equally. Visual tokens whose first stands at position p are at ``p + time``, ``p + row``
        and ``p + column``, audio tokens at p + their index on all axes. The text after them starts after the largest
        position of the last part (:func:`merge_by_time`). Generated tokens continue from the last of the prompt.
        """
        length = len(token_ids)
        positions = torch.arange(length, dtype=torch.float32).repeat(3, 1)
        if vision is not None and len(rows):
            rows, audio = rows.cpu(), self._audio_rows(token_ids, vision, rows).cpu()
            start, end = int(rows[0]), int(rows[0]) + len(rows) + len(audio)
            interval = torch.tensor(seconds_per_step(vision.seconds), dtype=torch.float32)
            time = vision.frame.cpu() * interval * self.times.rate
            seen = torch.stack([time, vision.row.cpu(), vision.column.cpu()]) + start
            heard = (torch.arange(len(audio), dtype=torch.float32) + start).repeat(3, 1)
            parts = merge_by_time(seen[0].tolist(), len(audio), start)
            kinds = [(heard if sound else seen)[:, part.start : part.stop] for sound, part in parts]
            positions[:, start:end] = torch.cat(kinds, dim=1)
            closing = 2 if len(audio) else 1
            first = kinds[-1].max() + 1
            positions[:, end : end + closing] = first + torch.arange(closing)
            positions[:, end + closing :] = positions[0, end + closing - 1] + 1 + torch.arange(length - end - closing)
        return positions[:, None].to(self.device), float(positions[0, -1]) + 1


def _halved(frames: int) -> int:
    """Return the number of spectrum frames after three convolutions of stride 2."""
    return -(-frames // 8)


def merge_by_time(times: Sequence[float], audio: int, start: int = 0) -> list[tuple[bool, range]]:
    """Merge visual and audio tokens by time, a visual token before an audio token of the same time.

    Args:
        times: (N,) times of the visual tokens, not decreasing.
        audio: number of audio tokens, one per position of time from ``start`` on.

    Returns:
        For each part, True if it is sound, and the range of its tokens.
    """
    parts: list[tuple[bool, range]] = []
    seen = heard = 0
    while seen < len(times) and heard < audio:
        first = seen
        while seen < len(times) and times[seen] <= start + heard:
            seen += 1
        parts += [(False, range(first, seen))] if seen > first else []
        first = heard
        while heard < audio and (seen == len(times) or times[seen] > start + heard):
            heard += 1
        parts += [(True, range(first, heard))] if heard > first else []
    return [*parts, (False, range(seen, len(times)))] if seen < len(times) else parts
