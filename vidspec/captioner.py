"""The captioner, from path to caption: read, encode, prefill, prune, decode, record. One clip at a time."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from collections.abc import Sequence as Items
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from typing_extensions import Unpack

from vidspec import garbage, video
from vidspec.config import profiles
from vidspec.config.profiles import Profile
from vidspec.config.run_spec import split_keywords
from vidspec.config.user_config import read_config
from vidspec.decoding import auto
from vidspec.decoding.captioner_models import (
    load_models,
    models_record,
    notes_on,
    start_draft_process,
    suggested_command,
)
from vidspec.decoding.decode import decode
from vidspec.decoding.default_profile import resolve_profile
from vidspec.decoding.dialogue import Dialogue
from vidspec.decoding.engine_thread import EngineThread, Flight
from vidspec.decoding.many import caption_clips, in_order
from vidspec.decoding.prompts import caption_prompts
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.setup import PLAIN_DECODING, DecodingSetup
from vidspec.decoding.text_stream import stream_certain_text
from vidspec.decoding.tickets import Arrivals, Caller, ServingEvents, Ticket, serve
from vidspec.decoding.workers.slot import DraftProcessSlot
from vidspec.embedded import ships
from vidspec.engine.decoder import LanguageModel
from vidspec.engine.device import synchroniser
from vidspec.engine.forward import Engine
from vidspec.errors import ArgumentError, ClosedError, GenerationError, UsageError, VidspecError
from vidspec.events.events import Event, LoopLoad, Opened
from vidspec.events.record import Caption, ModelsRecord
from vidspec.events.trace import Trace
from vidspec.events.wake import WakeEvent
from vidspec.models import loading
from vidspec.models.head import Head
from vidspec.models.identity import require_vision
from vidspec.models.image_captioner import DraftCaptioner, ImageCaptioner
from vidspec.models.request import CaptionOptions, CaptionRequest, make_request, prompt_list
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.vision_ahead import VisionAhead
from vidspec.video.thumbnails import draw_thumbnails

__all__ = ["CaptionOptions", "Captioner"]

#: Most setups kept for options of requests.
SETUPS = 64


class Captioner:
    """A profile with its models loaded; captions any number of clips, several at a time.

    One thread runs the models (:class:`~vidspec.decoding.engine_thread.EngineThread`). Any thread may call: concurrent
    calls share passes, and a text never depends on other calls.

    Args:
        profile: complete and consistent.
        target: the loaded target.
        draft: the loaded draft, or None if the profile drafts without a model.
        embedded: True for the built-in models.
        describe: captions a frame for an ensemble's context of that kind; the draft does it if None.
        slot: the draft's process for the parallel schedule; a new one, which loads ``draft`` again, if None.
        head: the loaded head, if the profile drafts with one.

    Attributes:
        return_probs: True to report the target's probability of each token in rounds; set it before a clip begins.
        estimates_speedup: True to estimate the decode speed-up in the record, by timing some plain decoding steps after
            the text (:mod:`vidspec.decoding.plain_step`); only for a clip that has the models to itself.
    """

    return_probs = False
    estimates_speedup = False

    def __init__(
        self,
        profile: Profile,
        target: VideoLanguageModel,
        draft: VideoLanguageModel | None,
        *,
        embedded: bool = False,
        describe: ImageCaptioner | None = None,
        slot: DraftProcessSlot | None = None,
        head: Head | None = None,
    ) -> None:
        if draft is not None:
            loading.check_pair(target, draft)
            require_vision(draft, shown=profile.shows_the_video or (profile.describes and describe is None))
        self.profile, self.embedded = profile, embedded
        describe = describe if profile.describes else None
        if profile.describes and describe is None and draft is not None:
            describe = DraftCaptioner(draft, beside=auto.has_room_for_two(target.device, draft.device))
        self.slot = slot if profile.concurrent else None
        if profile.concurrent and slot is None:
            self.slot = start_draft_process(profile, target if draft is None else draft)
        if self.slot is not None:
            self.slot.target = target
        self._setup: DecodingSetup | None = DecodingSetup.of(
            profile, target, None if profile.concurrent else draft, describe, head, self.slot
        )
        self._vision = VisionAhead(self.setup.vision_models)
        self._setups: dict[tuple[bool, str], DecodingSetup] = {}  # plain or not, by the options of requests
        self.engine = EngineThread.of(target, *self.devices)
        _ = self.setup.self_draft  # copy weights now, not with the first clip

    @property
    def setup(self) -> DecodingSetup:
        """The parts of the profile.

        Raises:
            ClosedError: the captioner is closed.
        """
        if self._setup is None:
            raise ClosedError
        return self._setup

    def setup_of(self, request: CaptionRequest, *, plain: bool = False) -> DecodingSetup:
        """Return the parts of the profile, or of plain decoding, with a request's own options.

        Raises:
            ProfileError: an option is unknown, or does not fit the profile.
        """
        setup = self._setup_with(request, plain=plain)
        return setup.for_text if request.text_only else setup

    def _setup_with(self, request: CaptionRequest, *, plain: bool) -> DecodingSetup:
        if not (request.generate or plain):
            return self.setup
        key = plain, repr(sorted(request.generate.items()))
        setup = self._setups.get(key)
        if setup is None:
            setup = self.setup.under(profiles.override(self.profile, PLAIN_DECODING)) if plain else self.setup
            setup = setup.with_generate(request.generate) if request.generate else setup
            if len(self._setups) >= SETUPS:
                self._setups.clear()
            self._setups[key] = setup
        return setup

    @property
    def target(self) -> Engine[VideoLanguageModel]:
        """The target model."""
        return self.setup.target

    @property
    def draft(self) -> Engine[VideoLanguageModel] | None:
        """The draft model, if it is in this process."""
        return self.setup.draft

    @classmethod
    @garbage.loading()
    def from_profile(cls, profile: str | Profile, *, overrides: Mapping[str, object] | None = None) -> Captioner:
        """Load the models of a profile.

        Args:
            profile: a name, a YAML file, or a loaded profile.
            overrides: dotted keys that override it, such as ``{"prune.alpha": 0.8}``.

        Raises:
            ProfileError, ModelError, DeviceError: with a one-line message and a hint.
        """
        if isinstance(profile, str):
            profile = profiles.load(profile, overrides)
        elif overrides:
            profile = profiles.override(profile, overrides)
        if profile.models.threads is not None:
            torch.set_num_threads(profile.models.threads)
        with ExitStack() as undo, suggested_command(profile):
            models = load_models(profile, undo)
            captioner = cls(profile, **models._asdict(), embedded=profile.models.pair is not None)
            if models.slot is not None:
                models.slot.ready()  # it was loading in the meantime; its errors are reported now
            undo.pop_all()
        garbage.thaw_after(captioner)
        return captioner

    @classmethod
    def from_pretrained(cls, target: str | Path, draft: str | Path | None = None, **options: object) -> Captioner:
        """Load a target, and the draft that ``vidspec caption --target`` would choose, with the same precedence.

        Args:
            target: a hub id or a folder.
            draft: a hub id or a folder; by default the one that ``vidspec models`` lists, or what is predicted to be
                the fastest on this GPU.
            options: ``profile``, keys of a profile that are options of the command line, such as ``frames`` or
                ``dtype``, and ``overrides``, other keys by dotted name. They win over ``VIDSPEC_*`` variables, these
                over the user's config.

        Raises:
            UsageError, ProfileError, ModelError, DeviceError: with a one-line message and a hint.
        """
        models = {"target": str(target), "draft": None if draft is None else str(draft)}
        fields, keys = split_keywords(models | options)
        profile = str(fields.pop("profile", None) or os.environ.get("VIDSPEC_PROFILE") or "") or None
        if fields:
            raise UsageError(
                f"{min(fields)}: is an option of a run, not of a captioner", hint="vidspec.run(...) takes it"
            )
        return cls.from_profile(resolve_profile(profile, keys, read_config()).profile)

    def __enter__(self) -> Captioner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the draft's process and release the device memory of the models; a second call has no effect.

        Unfinished calls of other threads raise ``ClosedError``.
        """
        if self._setup is None:
            return
        devices, drafter, slot, self._setup = self.devices, self.setup.drafter, self.slot, None
        self.engine.end_calls(self)
        self._vision.close()
        if slot is not None:
            slot.drop()
        self.slot = None
        self._setups.clear()
        garbage.thaw()
        if any(device.type == "cuda" for device in devices):
            gc.collect()  # in case a hub model's modules refer to each other in cycles
            torch.cuda.empty_cache()
        if drafter is not None:
            drafter.close()

    @property
    def models(self) -> ModelsRecord:
        """Names of target and draft; family, dtype, device and decoder of the target, as in the JSON record."""
        return models_record(self.setup)

    @property
    def has_feed(self) -> bool:
        """True if another thread encodes clips during the passes."""
        return self._vision.has_feed

    @property
    def max_sound_s(self) -> float | None:
        """Most seconds of a clip's sound that are used; None if the target or the profile uses no audio."""
        return self.target.model.max_sound_s if self.profile.video.audio else None

    @property
    def language_models(self) -> tuple[LanguageModel, ...]:
        """The models in this process that run passes, the target first."""
        return tuple(engine.model for engine in (self.target, self.draft, self.setup.head) if engine is not None)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Devices of the models in this process, the target's first."""
        return tuple(model.device for model in self.language_models)

    @property
    def gpu(self) -> int | None:
        """Index of the target's GPU, which an NVIDIA video decoder uses too; None without one."""
        return self.devices[0].index if self.devices[0].type == "cuda" else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on the loaded models, a line each."""
        return notes_on(self.setup)

    @property
    def choices(self) -> list[auto.Choice]:
        """Values that the profile leaves open, as chosen on this machine, with the reasons."""
        return auto.explain(self.setup)

    def caption(self, path: str | Path, **options: Unpack[CaptionOptions]) -> Caption:
        """Caption one clip; see :meth:`stream`."""
        return self._caption_whole(self._make_request("caption", path, options))

    def _caption_whole(self, request: CaptionRequest, setup: DecodingSetup | None = None) -> Caption:
        ticket = self._submit_alone(request, setup, result_only=True)
        del request  # its frames are released once the models have encoded them
        return ticket.result()

    def baseline(self, path: str | Path, **options: Unpack[CaptionOptions]) -> Caption:
        """Caption a clip by plain decoding of the same target, with the same engine, cache and kernels."""
        request = self._make_request("baseline", path, options)
        return self._caption_whole(request, self.setup_of(request, plain=True))

    def forget(self) -> None:
        """Drop the texts of earlier clips, for drafters that look tokens up in them."""
        if self.setup.drafter is not None:
            self.setup.drafter.forget()

    def warm_up(self) -> None:
        """Run everything once on a few grey frames, so that the next clip's timings include no first use."""
        grey = np.full((4, 64, 64, 3), 127, dtype=np.uint8)
        clip = video.Clip.of(grey, range(4))
        short = profiles.override(self.setup.profile, {"generate.max_new_tokens": 16})
        for profile in (short, profiles.override(short, PLAIN_DECODING)):
            self._caption_whole(CaptionRequest("", clip), self.setup.under(profile))

    def stream(self, path: str | Path, **options: Unpack[CaptionOptions]) -> Generator[Event, None, None]:
        """Caption one clip, event by event.

        Args:
            path: a video file.
            options: per-call options, see :class:`CaptionOptions`.

        Yields:
            ``Opened``; ``PrefillProgress`` occasionally during the prefill of a long prompt; ``Prefilled``; one
            ``Round`` per verification, with ``InputsReleased`` after the first; and ``Finished`` with the record. If
            the draft's process dies or hangs, ``Restarted``, and the events from ``Prefilled`` on again with a new
            process, once.

        Raises:
            VideoError: the file gives no frames.
            GenerationError: the prompt is too long for the model, or memory does not suffice.
            ClosedError: the captioner is closed before the clip has ended.
            ArgumentError, ProfileError: an argument is unknown or does not fit the profile; raised by the call itself.
        """
        return self._caption_one(self._make_request("stream", path, options))

    def stream_text(self, path: str | Path, **options: Unpack[CaptionOptions]) -> Generator[str, None, None]:
        """Caption one clip and yield its text as soon as it is certain; the pieces joined are the caption.

        No piece ends within a character, and none has a part of a stop string.

        Args:
            path: a video file.
            options: per-call options, see :class:`CaptionOptions`.

        Raises:
            VidspecError: as :meth:`stream`.
        """
        request = self._make_request("stream_text", path, options)
        return stream_certain_text(self._caption_one(request), self.setup_of(request).profile.generate.stop)

    def dialogue(self, path: str | Path, **options: Unpack[CaptionOptions]) -> Dialogue:
        """Read a clip and return a dialogue about it: each turn continues from the caches of earlier turns.

        Args:
            path: a video file.
            options: see :class:`CaptionOptions`; ``prompt`` is ignored.

        Raises:
            VideoError: the file gives no frames.
        """
        request = self.read_request(self._make_request("dialogue", path, options))
        return Dialogue(self._caption_one, replace(request, reread=None))

    def captions(self, path: str | Path, prompts: Items[str], **options: Unpack[CaptionOptions]) -> list[Caption]:
        """Caption a clip with several prompts; it is read once, and they are decoded together.

        Args:
            path: a video file.
            prompts: the prompts.
            options: see :class:`CaptionOptions`; ``prompt`` is ignored.

        Returns:
            The caption of each prompt, in order.

        Raises:
            VideoError, GenerationError: as :meth:`stream`, of the first prompt that fails.
            ArgumentError: as there; or the prompts are not a list of texts.
        """
        request, prompts = self._make_request("captions", path, options), prompt_list(prompts)
        return caption_prompts(self.serve, replace(self.read_request(request), reread=None), prompts)

    def caption_many(
        self,
        paths: Iterable[str | Path],
        *,
        on_error: Literal["raise", "record"] = "raise",
        ordered: bool = False,
        batch: int | None = None,
        **options: Unpack[CaptionOptions],
    ) -> Iterator[Caption]:
        """Caption many clips together, read ahead by threads of this process; yield each caption as it is finished.

        :func:`vidspec.run` does that with reader processes, which a damaged file may end, and with outputs.

        Args:
            paths: video files, drawn as they are needed.
            on_error: ``record`` yields the record of a failed clip, whose ``error`` says why; ``raise`` raises it.
            ordered: True to yield in the order of the clips.
            batch: most clips at a time; None to choose by memory and measured times.
            options: see :class:`CaptionOptions`.

        Raises:
            VidspecError: with ``on_error="raise"``, the first clip's that fails.
            ArgumentError, ProfileError: an argument is unknown or does not fit the profile; raised by the call itself.
        """
        if isinstance(paths, str | Path):
            raise ArgumentError("caption_many takes several paths", hint="call caption(path), or pass [path]")
        if on_error not in ("raise", "record"):
            raise ArgumentError(f"on_error must be raise or record, not {on_error!r}")
        first = self._make_request("caption_many", "", options)
        requests = (replace(first, path=str(path), key=number) for number, path in enumerate(paths))
        serve = partial(self.serve, batch=batch)
        results = caption_clips(
            serve, self.read_request, requests, raises=on_error == "raise", profile=self.profile.name
        )
        return in_order(results) if ordered else (caption for _, caption in results)

    def _make_request(self, method: str, path: str | Path, options: CaptionOptions) -> CaptionRequest:
        request = make_request(method, path, options)
        self.setup_of(request)  # refuses options that do not fit the profile
        return request

    def read_request(self, request: CaptionRequest) -> CaptionRequest:
        """Return a request with its frames, which are read again if the clip is repeated.

        Raises:
            VideoError, GenerationError: see :meth:`read`.
        """
        if request.clip is not None:
            return request
        read = partial(self.read, request.path, start=request.start, end=request.end)
        return replace(request, clip=read(prompt=request.prompt, generate=request.generate), reread=read)

    def _caption_one(self, request: CaptionRequest) -> Generator[Event, None, None]:
        """Yield the events of one clip."""
        ticket = self._submit_alone(request)
        del request  # its frames are released once the models have encoded them
        yield from ticket.events()

    def _submit_alone(
        self, request: CaptionRequest, setup: DecodingSetup | None = None, *, result_only: bool = False
    ) -> Ticket:
        """Read a clip and submit it as the only one of its caller."""
        trace = Trace(synchroniser(*self.devices))
        if request.clip is None:
            with trace.span("decode_video"):
                request = self.read_request(request)
        ticket = Ticket(self.engine.wake, result_only=result_only)
        setup = setup or self.setup_of(request)
        return self.engine.submit(Flight(ticket, Caller(1), self, setup, request, trace))

    def submit(self, request: CaptionRequest, caller: Caller, deliver: Callable[[Event | Exception], None]) -> Ticket:
        """Submit a clip that has been read, one of several of a caller.

        Args:
            request: the clip.
            caller: limits how many of its clips are decoded at once.
            deliver: called in the engine's thread with each event, at the end ``Finished`` or the exception.
        """
        ticket = Ticket(self.engine.wake, deliver)
        try:
            return self.engine.submit(Flight(ticket, caller, self, self.setup_of(request), request))
        except VidspecError as error:
            deliver(error)
            return ticket

    def serve(self, arrivals: Arrivals, *, batch: int | None = None, wake: WakeEvent | None = None) -> ServingEvents:
        """Caption clips as they arrive, several at a time: each pass of a model serves all clips that wait for it.

        A clip's text does not depend on the others. Calls of other threads share the passes, as clips of one call do.

        Args:
            arrivals: the clips; used by the thread that iterates.
            batch: most clips at a time; None to choose by memory and measured times.
            wake: set when ``arrivals`` has something new.

        Yields:
            Events with the key of their clip: those of :meth:`stream`, or instead of the last the exception that ended
            the clip. Between them, with the key None, the load. Closing the iterator abandons unfinished clips.
        """
        return serve(self.submit, arrivals, batch, wake or WakeEvent(), self._load)

    def _load(self, caller: Caller) -> LoopLoad:
        return caller.load(len(self.engine.loop), self.setup.slab)

    def read(
        self,
        path: str | Path,
        *,
        start: float | None = None,
        end: float | None = None,
        prompt: str | None = None,
        generate: Mapping[str, object] | None = None,
    ) -> video.Clip:
        """Read the frames that :meth:`stream` would pass to the models, scaled down to bound their memory.

        They are decoded in this process: a decoder that crashes on a damaged file ends it. Whole folders, and the
        command line, read in a process of their own (``vidspec.runs.reader``).

        Raises:
            VideoError: the file gives no frames.
            GenerationError: see :meth:`refuse`.
        """
        from vidspec.video.reading import MOST_BYTES

        wanted = self.profile.video
        return video.read(
            path,
            frames=wanted.frames,
            fps=wanted.fps,
            start=start,
            end=end,
            max_pixels=wanted.max_pixels,
            decoder=wanted.decoder,
            seek=wanted.seek,
            spread=wanted.spread,
            allow_damaged=wanted.allow_damaged,
            sound=self.max_sound_s,
            gpu=self.gpu,
            most_bytes=MOST_BYTES,
            check=partial(self.refuse, str(path), prompt, generate=generate),
        )

    def refuse(
        self,
        path: str,
        prompt: str | None,
        frames: int,
        height: int,
        width: int,
        generate: Mapping[str, object] | None = None,
    ) -> None:
        """Reject frames as :meth:`stream` would, as far as their size tells before they are decoded.

        Args:
            path: for the message.
            prompt: replaces the profile's.
            frames: their number, as ``vidspec.video.read`` would return them.
            height: theirs in pixels.
            width: theirs in pixels.
            generate: options of the request, see :class:`CaptionRequest`.

        Raises:
            GenerationError: their prompt would be too long for the model or the free memory.
        """
        setup = self.setup_of(CaptionRequest(path, generate=generate or {}))
        model, section = self.target.model, setup.profile.generate
        text = model.text_tokens(prompt or section.prompt, section.system)
        setup.check(path, model.visual_tokens(frames, height, width) + text)

    def prepare(self, clip: video.Clip) -> int:
        """Preprocess a clip for the models in this process before its turn; may run in another thread.

        On a CPU their vision towers encode it too: in a process of their own after :meth:`start_vision_worker`, else in
        the calling thread.

        Returns:
            Bytes that are held until the clip has been captioned.
        """
        return self._vision.prepare(clip)

    def start_vision_worker(self) -> None:
        """Move :meth:`prepare` to a process of its own, if possible; call before other threads prepare clips."""
        self._vision.start_worker()

    def _with_defaults(self, request: CaptionRequest) -> CaptionRequest:
        """Return the request with profile defaults and precomputed vision output.

        Raises:
            GenerationError: its prompt is empty, as one made of fields may be.
        """
        generate = self.profile.generate
        if request.prompt is not None and not request.prompt.strip():
            raise GenerationError(f"{request.path}: the prompt is empty", hint="leave it out for the profile's")
        prompt, system = request.prompt or generate.prompt, request.system or generate.system
        ahead, return_probs = self._vision.take(request.frames), request.return_probs or self.return_probs
        return replace(request, prompt=prompt, system=system, ahead=ahead, return_probs=return_probs)

    def start(self, request: CaptionRequest, trace: Trace, setup: DecodingSetup) -> Sequence:
        """Return the sequence of a clip whose frames have been read; its events are those of :meth:`stream`.

        Args:
            request: the clip.
            trace: times all work on the clip.
            setup: the parts that decode it.
        """
        sequence, clip = Sequence(request, trace), request.clip
        if clip is not None and not request.text_only:
            times, demo = tuple(float(t) for t in clip.timestamps), ships(self.target.model.source)
            thumbnails = draw_thumbnails(clip.frames, times)
            sequence.emit(Opened(request.path, clip.facts, len(clip.frames), times, demo, thumbnails))
        sequence.steps = decode(sequence, setup, self._with_defaults, self._can_estimate)
        return sequence

    def _can_estimate(self, sequence: Sequence) -> bool:
        """Return True if plain steps after the text are as fast as plain decoding of this clip by itself."""
        cache, question = sequence.job.cache, sequence.job.question
        undisturbed = not sequence.shared and (cache is None or (question is not None and question.kind == "turn"))
        drafts = sequence.setup.acceptance is not None
        wanted = sequence.job.estimates_speedup or (self.estimates_speedup and not self.has_feed)
        return wanted and undisturbed and drafts and not self.profile.prunes_the_target
