"""Inputs of a captioner's models: frames read as its profile says, checks of their size, and vision run ahead."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from vidspec import video
from vidspec.decoding.admission import check_prompt
from vidspec.decoding.setup import RequestSetups
from vidspec.models.request import CaptionRequest, require_text
from vidspec.models.vision_ahead import VisionAhead


class ClipInputs:
    """Reads clips for the models of a captioner, and tells other readers which frames the models take.

    Args:
        setups: the parts that decode its requests.

    Attributes:
        vision: preprocesses and encodes clips before their turn.
    """

    def __init__(self, setups: RequestSetups) -> None:
        self._setups = setups
        self.vision = VisionAhead(setups.base.vision_models)

    @property
    def max_sound_s(self) -> float | None:
        """Most seconds of a clip's sound that are used; None if the target or the profile uses no audio."""
        setup = self._setups.base
        return setup.target.model.max_sound_s if setup.profile.video.audio else None

    @property
    def gpu(self) -> int | None:
        """Index of the target's GPU, which an NVIDIA video decoder uses too; None without one."""
        device = self._setups.base.target.model.device
        return device.index if device.type == "cuda" else None

    def read(
        self,
        path: str | Path,
        *,
        start: float | None = None,
        end: float | None = None,
        prompt: str | None = None,
        generate: Mapping[str, object] | None = None,
    ) -> video.Clip:
        """Read the frames of a clip that the models are shown, scaled down to bound their memory.

        They are decoded in this process: a decoder that crashes on a damaged file ends it. Whole folders, and the
        command line, read in a process of their own (``vidspec.runs.reader``).

        Raises:
            VideoError: the file gives no frames.
            GenerationError: see :meth:`refuse`.
        """
        from vidspec.video.reading import MOST_BYTES

        wanted = self._setups.base.profile.video
        return video.read(
            path,
            frames=wanted.frames,
            fps=wanted.fps,
            start=start,
            end=end,
            max_pixels=wanted.max_pixels,
            decoder=wanted.decoder,
            seek=wanted.seek,
            allow_damaged=wanted.allow_damaged,
            sound=self.max_sound_s,
            gpu=self.gpu,
            most_bytes=MOST_BYTES,
            check=partial(self.refuse, str(path), prompt, generate=generate),
        )

    def read_request(self, request: CaptionRequest) -> CaptionRequest:
        """Return a request with its frames, which are read again if the clip is repeated.

        Raises:
            VideoError, GenerationError: see :meth:`read`.
        """
        if request.clip is not None:
            return request
        read = partial(self.read, request.path, start=request.start, end=request.end)
        return replace(request, clip=read(prompt=request.prompt, generate=request.generate), reread=read)

    def read_ahead(self, request: CaptionRequest) -> CaptionRequest:
        """Return a request with its frames, and run vision on them before their turn.

        Raises:
            VideoError, GenerationError: see :meth:`read`.
        """
        request = self.read_request(request)
        with suppress(Exception):  # it recurs, and is reported, when the clip is captioned
            self.vision.prepare(request.frames)
        return request

    def refuse(
        self,
        path: str,
        prompt: str | None,
        frames: int,
        height: int,
        width: int,
        generate: Mapping[str, object] | None = None,
    ) -> None:
        """Reject frames whose caption would fail, as far as their size tells before they are decoded.

        Args:
            path: for the message.
            prompt: replaces the profile's.
            frames: their number, as ``vidspec.video.read`` would return them.
            height: theirs in pixels.
            width: theirs in pixels.
            generate: options of the request, see :class:`CaptionRequest`.

        Raises:
            GenerationError: their prompt would be too long for the model or the free memory, or is no text.
        """
        require_text(path, prompt)
        setup = self._setups.of(CaptionRequest(path, generate=generate or {}))
        model, section = setup.target.model, setup.profile.generate
        text = model.template.text_token_count(prompt or section.prompt, section.system)
        check_prompt(setup, path, model.visual_tokens(frames, height, width) + text)
