"""Models of Qwen2.5-VL's vision with an audio tower, whose tokens stand among the visual ones.

Pruners treat audio tokens like text and keep all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from vidspec.engine.requests import Encode, Steps
from vidspec.models.base import EmbeddedPrompt, Pixels, VisionOutput
from vidspec.models.families.qwen2_5_vl import Qwen25VL
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
