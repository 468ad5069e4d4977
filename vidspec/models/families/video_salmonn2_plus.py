"""video-SALMONN 2+: Qwen2.5-VL with Whisper's encoder, two audio tokens per second between the steps of the video."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from vidspec.errors import ModelError
from vidspec.models.base import StockConfig, VisionOutput, families
from vidspec.models.families.qwen2_5_omni import AudioVisualQwen
from vidspec.models.families.qwen2_5_vl import seconds_per_step
from vidspec.models.preprocess import GridRules, ProcessorConfig
from vidspec.models.video_salmonn import PART_ROWS, PART_TOKENS

#: Samples of 30 seconds; sound is padded with silence to a multiple of them.
PART_SAMPLES = 30 * 16000
#: Audio tokens, and positions on the time axis, per second.
RATE = 2


@families.register("video_salmonn2_plus")
class VideoSalmonn2Plus(AudioVisualQwen):
    """A ``video_SALMONN2_plus``; its prompt is Qwen2.5-VL's with a line break after the video.

    With sound, the audio tokens of a temporal step follow its visual tokens, and the rest of them those of the last.
    """

    family = "video_salmonn2_plus"

    def set_up(self, processor: ProcessorConfig) -> None:
        from transformers import WhisperFeatureExtractor

        super().set_up(processor)
        config = self.model.config
        self.audio_id = int(config.audio_token_id)
        self.audio = self.tokenizer.convert_ids_to_tokens(self.audio_id)
        if self.audio is None:
            raise ModelError(f"{self.name}: its tokenizer has no token {self.audio_id}, its audio_token_id")
        self.feature_extractor = WhisperFeatureExtractor(feature_size=self.model.audio.num_mel_bins)
        # The authors set no limit. More sound than this does not fit the model's context.
        self.max_sound_s = config.text_config.max_position_embeddings / RATE

    @classmethod
    def rules_of(cls, processor: ProcessorConfig, vision: StockConfig) -> GridRules:
        """Return Qwen2.5-VL's rules with the budget of the authors' evaluation, whatever the processor's config."""
        return replace(super().rules_of(processor, vision), min_pixels=56**2, max_pixels=61_250, full_frames=768)

    def audio_tokens(self, samples: int) -> int:
        return -(-samples // PART_SAMPLES) * PART_TOKENS

    def spectrum(self, sound: NDArray[np.float32]) -> torch.Tensor:
        """Return the log-mel spectra (bins, 3000 P) of the parts of a sound, each normalised by itself."""
        parts = (sound[start : start + PART_SAMPLES] for start in range(0, len(sound), PART_SAMPLES))
        spectra = (self.feature_extractor(part, sampling_rate=16000, return_tensors="pt") for part in parts)
        return torch.cat([found["input_features"][0] for found in spectra], dim=1)

    def split_spectrum(self, sound: torch.Tensor) -> Iterator[torch.Tensor]:
        yield from sound.split(2 * PART_ROWS, dim=1)

    def encode_spectrum(self, part: torch.Tensor) -> torch.Tensor:
        return self.model.audio(part[None].to(self.vision_dtype))  # type: ignore[no-any-return]

    def prompt_pieces(self, vision: VisionOutput) -> Sequence[str | range]:
        middle: list[str | range] = [range(len(vision))]
        if vision.audio is not None:
            step, middle = len(vision) // vision.grid[0], []
            for number, count in enumerate(audio_per_step(len(vision.audio), vision.seconds)):
                middle += [range(number * step, (number + 1) * step), self.audio * count]
        return [self.opens, *middle, self.closes + "\n"]

    def positions(
        self, token_ids: torch.Tensor, vision: VisionOutput | None, rows: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        """Return positions (3, 1, L) by :func:`salmonn_positions`."""
        audio = self._audio_rows(token_ids, vision, rows)
        positions, following = salmonn_positions(len(token_ids), rows, audio, vision)
        return positions[:, None].to(self.device), following


def audio_per_step(audio: int, seconds: Sequence[float]) -> list[int]:
    """Return the number of audio tokens after each temporal step; the last gets the rest.

    Sound that ends before the video leaves later steps without any; the authors' code fails there.

    Args:
        audio: number of audio tokens.
        seconds: start of each step.
    """
    starts = _times(torch.arange(len(seconds)), seconds).clamp(max=audio).tolist()
    return [end - start for start, end in zip(starts, [*starts[1:], audio], strict=True)]


def salmonn_positions(
    length: int, rows: torch.Tensor, audio: torch.Tensor, vision: VisionOutput | None
) -> tuple[torch.Tensor, int]:
    """Return the rotary positions of a prompt (time, row, column), as the authors number them in training.

    Text advances all axes equally. Visual tokens that start at position p are at ``p + time``, ``p + row`` and ``p +
    column``, the audio token of index i at ``p + i``, ``p`` and ``p + i``. The text after them starts after their
    largest position, with sound after the largest on the time axis. Generated tokens start after the largest position.

    Args:
        length: rows of the prompt (L).
        rows: (N,) rows of the visual tokens, sorted.
        audio: (A,) rows of the audio tokens, sorted; no text between visual or audio tokens.
        vision: the visual tokens; None if there are none.

    Returns:
        (3, L) on the CPU, and the position of the first generated token.
    """
    positions = torch.arange(length).repeat(3, 1)
    if vision is not None and len(rows):
        rows, audio = rows.cpu(), audio.cpu()
        start, index = int(rows[0]), torch.arange(len(audio))
        cells = [_times(vision.frame.cpu(), vision.seconds), vision.row.cpu(), vision.column.cpu()]
        positions[:, rows] = start + torch.stack(cells)
        positions[:, audio] = start + torch.stack([index, torch.zeros_like(index), index])
        text = start + len(rows) + len(audio)
        last = positions[0, start:text] if len(audio) else positions[:, start:text]
        positions[:, text:] = int(last.max()) + 1 + torch.arange(length - text)
    return positions, int(positions.max()) + 1


def _times(steps: torch.Tensor, seconds: Sequence[float]) -> torch.Tensor:
    """Return the times of temporal steps in positions; float32, rounded down, as in the authors' code."""
    return (steps * seconds_per_step(seconds) * RATE).long()
