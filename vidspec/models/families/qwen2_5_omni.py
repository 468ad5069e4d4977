"""Qwen2.5-Omni: the thinker, with Qwen2.5-VL's vision and an audio tower; the talker is not loaded.

Sound is interleaved with the frames of the same seconds, and positions count time in fractions of a second (TMRoPE).
Pruners treat audio tokens like text and keep all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from vidspec.engine.requests import Encode, Steps
from vidspec.models.base import EmbeddedPrompt, Pixels, StockConfig, VisionOutput, families
from vidspec.models.families.qwen2_5_vl import CHAT_TEMPLATE as QWEN_TEMPLATE
from vidspec.models.families.qwen2_5_vl import Qwen25VL, seconds_per_step
from vidspec.models.memory_estimate import BUDGET
from vidspec.models.preprocess import GridRules, ProcessorConfig
from vidspec.models.vision import WINDOWS, token_bytes
from vidspec.video.base import Clip


class AudioVisualQwen(Qwen25VL):
    """Qwen2.5-VL with sound: subclasses turn samples into spectra, spectra into tokens, and place these.

    Attributes:
        audio_id: id of the placeholder of an audio token.
    """

    audio_id: int
    even_steps: ClassVar[bool] = False  # the frames' own times, which the sound's are compared with

    def spectrum(self, sound: NDArray[np.float32]) -> torch.Tensor:
        """Return the log-mel spectrum (bins, F) of a sound."""
        raise NotImplementedError

    def split_spectrum(self, sound: torch.Tensor) -> Iterator[torch.Tensor]:
        """Split a spectrum (bins, F) into parts that can be encoded by themselves, in bounded memory."""
        raise NotImplementedError

    def encode_spectrum(self, part: torch.Tensor) -> torch.Tensor:
        """Return the audio tokens (A, hidden) of a part of a spectrum on the model's device."""
        raise NotImplementedError

    def preprocess(self, clip: Clip) -> Pixels:
        """Return Qwen2.5-VL's pixels, and the log-mel spectrum of the first :attr:`max_sound_s` seconds."""
        pixels = super().preprocess(clip)
        if clip.sound is None or not self.audio_tokens(len(clip.sound)):
            return pixels
        return replace(pixels, sound=self.spectrum(clip.sound))

    @torch.inference_mode()
    def encode_steps(self, pixels: Pixels, *, pooled: bool = False) -> Steps[VisionOutput]:
        """Encode the frames as in Qwen2.5-VL, then the sound, in parts of bounded memory."""
        vision = yield from super().encode_steps(pixels, pooled=pooled)
        if pixels.sound is None:
            return vision
        parts = []
        for part in self.split_spectrum(pixels.sound.to(self.device)):
            parts.append((yield Encode(partial(self._encode_sound, part))))
        return replace(vision, audio=torch.cat(parts))

    @torch.inference_mode()
    def _encode_sound(self, part: torch.Tensor) -> torch.Tensor:
        with self.vision_lock:
            return self.encode_spectrum(part)

    def _audio_rows(self, token_ids: torch.Tensor, vision: VisionOutput | None, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows (A,) of the audio tokens, those after the first visual token: a text may contain others."""
        if vision is None or vision.audio is None:
            return rows[:0]
        found = (token_ids == self.audio_id).nonzero()[:, 0]
        return found[found > rows[0]][: len(vision.audio)]

    def _embed_prompt(self, token_ids: list[int], rows: torch.Tensor, vision: VisionOutput | None) -> EmbeddedPrompt:
        prefix = super()._embed_prompt(token_ids, rows, vision)
        audio = self._audio_rows(prefix.token_ids, vision, rows)
        if vision is not None and vision.audio is not None:
            prefix.embeds[0, audio] = vision.audio.to(prefix.embeds)
        return replace(prefix, audio=audio)


CHAT_TEMPLATE = QWEN_TEMPLATE.replace(
    "<|vision_start|><|video_pad|><|vision_end|>", "<|vision_bos|><|VIDEO|><|vision_eos|>"
)
#: Default settings of the feature extractor, those of the published one; the bins follow from the tower.
EXTRACTOR = {
    "sampling_rate": 16000,
    "hop_length": 160,
    "chunk_length": 300,
    "n_fft": 400,
    "padding_value": 0.0,
    "padding_side": "right",
    "dither": 0.0,
}


@families.register("qwen2_5_omni")
class Qwen25Omni(AudioVisualQwen):
    """A ``Qwen2_5OmniThinkerForConditionalGeneration``; its prompt is Qwen2.5-VL's, under other names of the tokens.

    With sound the video's place is ``<|vision_bos|><|audio_bos|>{video and sound}<|audio_eos|><|vision_eos|>``: per
    ``seconds_per_chunk`` the visual tokens, then the audio tokens.
    """

    family = "qwen2_5_omni"
    chat_template: ClassVar[str] = CHAT_TEMPLATE

    @staticmethod
    def config_of(config: StockConfig) -> StockConfig:
        return config.thinker_config

    def _init_parts(self) -> None:
        super()._init_parts()
        self.model.set_attn_implementation({"audio_config": WINDOWS})

    def set_up(self, processor: ProcessorConfig) -> None:
        from transformers import WhisperFeatureExtractor

        super().set_up(processor)
        config, extractor = self.model.config, processor.get("feature_extractor") or {}
        self.audio_id = int(config.audio_token_id)
        special_ids = [self.audio_id, config.audio_start_token_id, config.audio_end_token_id]
        self.audio, self.audio_opens, self.audio_closes = self.tokenizer.convert_ids_to_tokens(special_ids)
        bins = int(extractor.get("feature_size") or config.audio_config.num_mel_bins)
        settings = {key: extractor.get(key, default) for key, default in EXTRACTOR.items()}
        self.feature_extractor = WhisperFeatureExtractor(feature_size=bins, **settings)
        self.max_sound_s = self.feature_extractor.n_samples / self.feature_extractor.sampling_rate
        per_second = int(config.position_id_per_seconds)
        self.times = ClipTimes(per_second, int(per_second * getattr(config, "seconds_per_chunk", 2)))

    @classmethod
    def rules_of(cls, processor: ProcessorConfig, vision: StockConfig) -> GridRules:
        """Return the config's rules with the default pixels of a frame, which the library's processor puts over it."""
        low, high = cls.default_rules.min_pixels, cls.default_rules.max_pixels
        return replace(super().rules_of(processor, vision), min_pixels=low, max_pixels=high)

    def audio_tokens(self, samples: int) -> int:
        return _pooled_length(-(-min(samples, self.feature_extractor.n_samples) // self.feature_extractor.hop_length))

    def spectrum(self, sound: NDArray[np.float32]) -> torch.Tensor:
        """Return the log-mel spectrum (bins, F) of a sound, without padding it to full length as ``transformers`` does.

        One window of silence after the sound, aligned to the hops, gives the same numbers.
        """
        extractor = self.feature_extractor
        padding = (
            max(0, extractor.n_samples - len(sound) - extractor.n_fft) // extractor.hop_length * extractor.hop_length
        )
        features = extractor(
            [sound],
            sampling_rate=extractor.sampling_rate,
            padding="max_length",
            max_length=extractor.n_samples - padding,
            return_attention_mask=True,
            return_tensors="pt",
        )
        return features["input_features"][0][:, features["attention_mask"][0].bool()]  # type: ignore[no-any-return]

    def encode_spectrum(self, part: torch.Tensor) -> torch.Tensor:
        length = torch.tensor([part.shape[1]], device=self.device)
        return self.model.model.audio_tower(part, feature_lens=length).last_hidden_state  # type: ignore[no-any-return]

    def split_spectrum(self, sound: torch.Tensor) -> Iterator[torch.Tensor]:
        """Split a spectrum into parts of whole pairs of windows; attention and pooling cross no border of a pair."""
        config = self.model.config.audio_config
        pair = 4 * int(config.n_window)
        size = pair * max(1, BUDGET // (pair // 2 * token_bytes(config)))
        start = 0
        while start < sound.shape[1]:
            end = start + size
            if not _pooled_length(sound.shape[1] - end):  # too short for a token: append it to the previous part
                end = sound.shape[1]
            yield sound[:, start:end]
            start = end

    def prompt_pieces(self, vision: VisionOutput) -> Sequence[str | range]:
        if vision.audio is None:
            return super().prompt_pieces(vision)
        pieces = [self.audio * len(part) if sound else part for sound, part in self.order(vision, len(vision.audio))]
        return [self.opens + self.audio_opens, *pieces, self.audio_closes + self.closes]

    def order(self, vision: VisionOutput, audio: int) -> list[tuple[bool, range]]:
        """Return the parts of visual tokens and of so many audio tokens in prompt order, True for sound."""
        return interleave(self.times.of(vision), audio, self.times.chunk)

    def positions(
        self, token_ids: torch.Tensor, vision: VisionOutput | None, rows: torch.Tensor
    ) -> tuple[torch.Tensor, float]:
        """Return positions (3, 1, L) by :func:`tmrope`."""
        positions, following = tmrope(
            len(token_ids), rows, self._audio_rows(token_ids, vision, rows), vision, self.times
        )
        return positions[:, None].to(self.device), following


@dataclass(frozen=True)
class ClipTimes:
    """Time axis of a clip.

    Attributes:
        rate: positions per second.
        chunk: positions per chunk, in which visual tokens precede audio tokens.
    """

    rate: int
    chunk: int

    def of(self, vision: VisionOutput) -> torch.Tensor:
        """Return the time (N,) of each visual token, on the CPU; float32, rounded down, as in ``transformers``."""
        interval = torch.tensor(seconds_per_step(vision.seconds), dtype=torch.float32)
        return (vision.frame.cpu() * interval * self.rate).long()


def _pooled_length(frames: int) -> int:
    """Return the tokens of so many spectrum frames: halved by a convolution, then by mean pooling; at least 0."""
    return max(0, ((frames - 1) // 2 + 1 - 2) // 2 + 1)


def interleave(times: torch.Tensor, audio: int, chunk: int) -> list[tuple[bool, range]]:
    """Interleave visual and audio tokens as ``transformers`` 5.23 does.

    Both are cut where the time passes the next multiple of ``chunk``, and their parts alternate. Each token passes only
    one multiple: if steps are further apart than ``chunk``, parts of one token follow until the cuts catch up, and
    audio tokens precede visual tokens until then.

    Args:
        times: (N,) times of the visual tokens, not decreasing.
        audio: number of audio tokens (A), one per position of time.
        chunk: positions per chunk.

    Returns:
        For each part, True if it is sound, and the range of its tokens.
    """
    kinds = [_cut_by_time(times.tolist(), chunk), _cut_by_time(range(audio), chunk)]
    return [
        (bool(kind), parts[turn])
        for turn in range(max(map(len, kinds)))
        for kind, parts in enumerate(kinds)
        if turn < len(parts)
    ]


def _cut_by_time(times: Sequence[int], chunk: int) -> list[range]:
    parts: list[range] = []
    start = 0
    for token, time in enumerate(times):
        if time >= (len(parts) + 1) * chunk:
            parts.append(range(start, token))
            start = token
    return [*parts, range(start, len(times))]


def tmrope(
    length: int, rows: torch.Tensor, audio: torch.Tensor, vision: VisionOutput | None, times: ClipTimes
) -> tuple[torch.Tensor, int]:
    """Return the rotary positions of a prompt (time, row, column), as ``transformers`` 5.23 numbers them.

    Text advances all axes equally. Visual tokens that start at position p are at ``p + time``, ``p + row`` and
    ``p + column``, audio tokens at p + their index on all axes. The text after them starts after the largest position
    of the last part (:func:`interleave`). With sound, the two markers before the video share a position, as do the two
    after it. Generated tokens continue from the last of the prompt.

    Args:
        length: rows of the prompt (L).
        rows: (N,) rows of the visual tokens, sorted.
        audio: (A,) rows of the audio tokens, sorted; no text between visual or audio tokens.
        vision: the visual tokens; None if there are none.
        times: time axis of the clip.

    Returns:
        (3, L) on the CPU, and the position of the first generated token.
    """
    positions = torch.arange(length).repeat(3, 1)
    if vision is not None and len(rows):
        rows, audio = rows.cpu(), audio.cpu()
        has_sound = int(len(audio) > 0)
        start = int(rows[0]) - has_sound
        positions[:, start:] -= has_sound
        time = times.of(vision)
        positions[:, rows] = start + torch.stack([time, vision.row.cpu(), vision.column.cpu()])
        positions[:, audio] = start + torch.arange(len(audio))
        last = rows
        if has_sound:
            sound, part = interleave(time, len(audio), times.chunk)[-1]
            last = (audio if sound else rows)[part.start : part.stop]
        text_start = int(last[-1]) + 1
        counted = (torch.arange(length - text_start) - has_sound).clamp(min=0)
        positions[:, text_start:] = int(positions[:, last].max()) + 1 + counted
    return positions, int(positions[0, -1]) + 1
