"""A captioner's requests to the engine thread: clips as its models take them, the parts that decode them, events."""

from __future__ import annotations

import gc
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from vidspec import garbage, video
from vidspec.config import profiles
from vidspec.decoding.admission import check_prompt
from vidspec.decoding.decode import decode
from vidspec.decoding.engine_thread import EngineThread, SubmittedClip
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.setup import PLAIN_DECODING, DecodingSetup, RequestSetups
from vidspec.decoding.tickets import Arrivals, Caller, ServingEvents, Ticket, serve
from vidspec.embedded import ships
from vidspec.errors import GenerationError
from vidspec.events.events import LoopLoad, Opened
from vidspec.events.trace import Trace
from vidspec.events.wake import WakeEvent
from vidspec.models.request import CaptionRequest, require_text
from vidspec.models.vision_ahead import VisionAhead
from vidspec.video.sample import draw_thumbnails


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


__all__ = ["EngineClient"]


class EngineClient:
    """Submits the requests of one profile to the thread that runs its models.

    Any thread may submit: all requests share passes, and a text never depends on the others.

    Args:
        setup: the parts of the profile, with their models.

    Attributes:
        profile: the settings.
        thread: runs the models, for all captioners of the same target.
        inputs: reads clips and encodes them ahead.
        return_probs: True to report the target's probability of each token in rounds; set it before a clip begins.
        estimates_speedup: True to estimate the decode speed-up in the record, by timing some plain decoding steps after
            the text (:mod:`vidspec.decoding.decode`); only for a clip that has the models to itself.
    """

    def __init__(self, setup: DecodingSetup) -> None:
        self.profile, self._setups = setup.profile, RequestSetups(setup)
        self.inputs = ClipInputs(self._setups)
        self.thread = EngineThread.of(setup.target.model, *setup.devices)
        self.return_probs = self.estimates_speedup = False
        _ = setup.self_draft  # copy weights now, not with the first clip

    @property
    def setup(self) -> DecodingSetup:
        """The parts of the profile.

        Raises:
            ClosedError: the captioner is closed.
        """
        return self._setups.base

    def setup_of(self, request: CaptionRequest) -> DecodingSetup:
        """Return the parts that decode a request, with its own options.

        Raises:
            ClosedError: the captioner is closed.
            ProfileError: an option is unknown, or does not fit the profile.
        """
        return self._setups.of(request)

    def submit(
        self,
        request: CaptionRequest,
        ticket: Ticket,
        caller: Caller | None = None,
        *,
        setup: DecodingSetup | None = None,
        trace: Trace | None = None,
    ) -> None:
        """Submit a clip that has been read.

        Args:
            request: the clip.
            ticket: receives its events. Make it before, so that it can be cancelled if Ctrl-C comes while this returns.
            caller: limits how many of its clips are decoded at once; None for a caller with this clip alone.
            setup: the parts that decode it; None for those of the request.
            trace: times all work on the clip, its reading included.

        Raises:
            ClosedError, ProfileError: as :meth:`setup_of`.
            GenerationError: this process was forked from one that captioned with these models.
        """
        setup = setup or self.setup_of(request)
        self.thread.submit(SubmittedClip(ticket, caller or Caller(1), self, setup, request, trace))

    def serve(self, arrivals: Arrivals, *, batch: int | None = None, wake: WakeEvent | None = None) -> ServingEvents:
        """Caption clips as they arrive, several at a time: each pass of a model serves all clips that wait for it.

        A clip's text does not depend on the others. Calls of other threads share the passes, as clips of one call do.

        Args:
            arrivals: the clips; used by the thread that iterates.
            batch: most clips at a time; None to choose by memory and measured times.
            wake: set when ``arrivals`` has something new.

        Yields:
            Events with the key of their clip: those of :meth:`Captioner.stream <vidspec.captioner.Captioner.stream>`,
            or instead of the last the exception that ended the clip. Between them, with the key None, the load. Closing
            the iterator abandons unfinished clips.
        """
        return serve(self.submit, arrivals, batch, wake or WakeEvent(), self._load)

    def warm_up(self) -> None:
        """Run everything once on a few grey frames, so that the next clip's timings include no first use."""
        clip = video.Clip.of(np.full((4, 64, 64, 3), 127, dtype=np.uint8), range(4))
        short = profiles.override(self.profile, {"generate.max_new_tokens": 16})
        for profile in (short, profiles.override(short, PLAIN_DECODING)):
            setup = self.setup.under(profile)
            with Ticket(result_only=True) as ticket:
                self.submit(CaptionRequest("", clip), ticket, setup=setup)
                list(ticket.events())

    def close(self) -> None:
        """End the draft's process and release the device memory of the models; a second call has no effect.

        Unfinished requests end with ``ClosedError``.
        """
        setup = self._setups.close()
        if setup is None:
            return
        devices, drafter, slot = setup.devices, setup.drafter, setup.slot
        del setup
        self.thread.end_calls(self)
        self.inputs.vision.close()
        if slot is not None:
            slot.drop()
        garbage.thaw()
        if any(device.type == "cuda" for device in devices):
            gc.collect()  # in case a hub model's modules refer to each other in cycles
            torch.cuda.empty_cache()
        if drafter is not None:
            drafter.close()

    def start(self, request: CaptionRequest, trace: Trace, setup: DecodingSetup, key: Hashable) -> Sequence:
        """Return the sequence of a submitted clip, which has emitted its first event. Called by the engine thread.

        Args:
            request: the clip.
            trace: times all work on the clip.
            setup: the parts that decode it.
            key: identifies it in the loop.

        Raises:
            GenerationError: its prompt is empty or no text.
        """
        sequence, clip = Sequence(self._with_defaults(request), setup, trace, key), request.clip
        if clip is not None and not request.text_only:
            times, demo = tuple(float(t) for t in clip.timestamps), ships(setup.target.model.source)
            thumbnails = draw_thumbnails(clip.frames, times)
            sequence.emit(Opened(request.path, clip.facts, len(clip.frames), times, demo, thumbnails))
        sequence.steps = decode(sequence, self._can_estimate)
        return sequence

    def _load(self, caller: Caller) -> LoopLoad:
        return caller.load(len(self.thread.loop), self.setup.target.model.decoder.slab)

    def _with_defaults(self, request: CaptionRequest) -> CaptionRequest:
        """Return the request with profile defaults and precomputed vision output.

        Raises:
            GenerationError: its prompt is empty or no text, as one made of fields may be.
        """
        generate = self.profile.generate
        if request.prompt is not None and not request.prompt.strip():
            raise GenerationError(
                f"{request.path}: the prompt is empty", hint="leave it out to use the profile's prompt"
            )
        require_text(request.path, request.prompt, request.system, *chain.from_iterable(request.earlier))
        prompt, system = request.prompt or generate.prompt, request.system or generate.system
        ahead, return_probs = self.inputs.vision.take(request.frames), request.return_probs or self.return_probs
        return replace(request, prompt=prompt, system=system, ahead=ahead, return_probs=return_probs)

    def _can_estimate(self, sequence: Sequence) -> bool:
        """Return True if plain steps after the text are as fast as plain decoding of this clip by itself."""
        cache, question = sequence.job.cache, sequence.job.question
        undisturbed = not sequence.shared and (cache is None or (question is not None and question.kind == "turn"))
        drafts = sequence.setup.acceptance is not None
        wanted = sequence.job.estimates_speedup or (self.estimates_speedup and not self.inputs.vision.has_feed)
        return wanted and undisturbed and drafts and not self.profile.prunes_the_target
