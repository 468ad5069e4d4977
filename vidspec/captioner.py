"""The captioner, from path to caption: read, encode, prefill, prune, decode, record. One clip at a time."""

from __future__ import annotations

import threading
from collections.abc import Generator, Hashable, Iterator, Mapping
from collections.abc import Sequence as Items
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypedDict
from weakref import WeakKeyDictionary

import numpy as np
import torch
from typing_extensions import Unpack

from vidspec import garbage, video
from vidspec.config import profiles
from vidspec.config.profiles import Profile
from vidspec.decoding.admission import MemoryClaim
from vidspec.decoding.calls import Arrivals, ServingEvents, SingleArrival
from vidspec.decoding.decode import decode
from vidspec.decoding.dialogue import Dialogue
from vidspec.decoding.plain_step import time_plain_step
from vidspec.decoding.prompts import PromptQueue
from vidspec.decoding.report import report
from vidspec.decoding.schedules.parallel import WorkerLost
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.serving import Serving
from vidspec.decoding.setup import DecodingSetup
from vidspec.decoding.workers import places
from vidspec.decoding.workers.slot import DraftProcessSlot
from vidspec.draft_length.pace import WindowController
from vidspec.embedded import ships
from vidspec.engine.decoder import LanguageModel
from vidspec.engine.device import synchroniser, use_one_core
from vidspec.engine.forward import Engine
from vidspec.engine.requests import Steps
from vidspec.errors import ArgumentError, ClosedError, GenerationError, ModelError
from vidspec.events.events import Event, Finished, LoopLoad, Opened, Prefilled, Restarted
from vidspec.events.record import Caption, ModelsRecord
from vidspec.events.trace import Trace
from vidspec.events.wake import WakeEvent
from vidspec.models import eagle3, hub, image_captioner, loading, mtp
from vidspec.models.base import Pixels, VideoLanguageModel, VisionOutput
from vidspec.models.head import Head
from vidspec.models.identity import require_vision
from vidspec.models.image_captioner import DraftCaptioner, ImageCaptioner
from vidspec.models.request import CaptionRequest, DialogueTurn, Question
from vidspec.models.vision_worker import VisionWorker, is_available
from vidspec.registry import nearest

__all__ = ["CaptionOptions", "Captioner"]

#: Most setups kept for options of requests.
SETUPS = 64
_PLAIN = {
    "models.captioner": None,
    "draft.kind": "none",
    "draft.gamma": 5,
    "draft.precision": "auto",
    "prune.method": "none",
    "lossy.method": "none",
    "schedule.kind": "autoregressive",
    "schedule.prefill": "sequential",
}


class CaptionOptions(TypedDict, total=False):
    """Per-call options; unset and None fields fall back to the profile.

    ``start`` and ``end`` are seconds from the start of the stream; ``clip`` holds frames that were read before,
    ``earlier`` earlier questions and answers about them.
    """

    start: float | None
    end: float | None
    prompt: str | None
    system: str | None
    clip: video.Clip | None
    earlier: tuple[DialogueTurn, ...]


class Captioner:
    """A profile with its models loaded; captions any number of clips, several at a time.

    Threads may share it: concurrent calls share passes, and a text never depends on other calls.

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
            describe = DraftCaptioner(draft, beside=places.has_room_for_two(target.device, draft.device))
        #: True if another thread encodes clips during the passes.
        self.has_feed = False
        self._vision_worker: VisionWorker | None = None
        self._precomputed: WeakKeyDictionary[video.Clip, dict[VideoLanguageModel, Pixels | VisionOutput]] = (
            WeakKeyDictionary()
        )
        self.slot = slot if profile.concurrent else None
        if profile.concurrent and slot is None:
            drafting = target if draft is None else draft
            self.slot = DraftProcessSlot(drafting.source, places.draft_placement(profile), profile)
        if self.slot is not None:
            self.slot.target = target
        self._setup: DecodingSetup | None = DecodingSetup.of(
            profile, target, None if profile.concurrent else draft, describe, head, self.slot
        )
        self._setups: dict[str, DecodingSetup] = {}  # by the options of requests
        self._serving = Serving(synchroniser(*self.devices))
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

    def setup_of(self, request: CaptionRequest) -> DecodingSetup:
        """Return the parts of the profile with a request's own options.

        Raises:
            ProfileError: an option is unknown, or does not fit the profile.
        """
        if not request.generate:
            return self.setup
        key = repr(sorted(request.generate.items()))
        setup = self._setups.get(key)
        if setup is None:
            setup = self.setup.with_generate(request.generate)
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
        wanted = profile.models
        if wanted.threads is not None:
            torch.set_num_threads(wanted.threads)
        where, draft_where = places.target_placement(profile), places.draft_placement(profile)
        hub.require_models(profile.named_models)
        embedded = wanted.pair is not None
        if wanted.pair is not None:
            folder = loading.embedded_folder(wanted.pair, "target")
            if not (folder / "config.json").is_file():
                raise ModelError("the built-in models are missing from this installation", hint="reinstall vidspec")
            names = (
                str(folder),
                str(loading.embedded_folder(wanted.pair, "head" if profile.names_a_head else "draft")),
            )
        else:
            names = (wanted.target or "", wanted.draft or "")
            loading.read_config(names[0])  # its errors are reported before the draft is loaded
        with ExitStack() as undo:
            # The target last: its device map depends on the memory that is left.
            describe_where = replace(draft_where, weights=None)
            describe = (
                image_captioner.load_image_captioner(wanted.captioner, describe_where) if wanted.captioner else None
            )
            draft = slot = None
            if profile.concurrent:
                slot = DraftProcessSlot(names[1] if profile.drafts_with_a_model else names[0], draft_where, profile)
                undo.callback(slot.drop)
            if profile.drafts_with_a_model and not profile.concurrent:
                draft = loading.load_model(names[1], draft_where, text=True)
            target = loading.load_model(names[0], where)
            if embedded:
                target.name = "embedded/target"
                if draft is not None:
                    draft.name = "embedded/draft"
            head: Head | None = None
            if profile.names_a_head:
                head = eagle3.load_eagle3(names[1], target, draft_where)
                head.name = "embedded/head" if embedded else head.name
            elif profile.drafts_with_a_head:
                head = mtp.load_mtp(target)
            captioner = cls(profile, target, draft, embedded=embedded, describe=describe, slot=slot, head=head)
            if slot is not None:
                slot.ready()  # it was loading in the meantime; its errors are reported now
            undo.pop_all()
        return captioner

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
        self._serving.close()
        if self._vision_worker is not None:
            self._vision_worker.close()
        if self.slot is not None:
            self.slot.drop()
        devices, drafter = self.devices, self.setup.drafter
        self._setup = self.slot = None
        self._setups.clear()
        if any(device.type == "cuda" for device in devices):
            torch.cuda.empty_cache()
        if drafter is not None:
            drafter.close()

    @property
    def models(self) -> ModelsRecord:
        """Names of target and draft; family, dtype, device and decoder of the target, as in the JSON record."""
        model, decoder = self.target.model, self.target.model.decoder
        adapter = self.profile.models.adapter
        why = decoder.why if decoder.name != "fused" else decoder.eager if model.device.type == "cuda" else None
        return {
            "target": model.name,
            **({} if adapter is None else {"adapter": adapter}),
            "draft": self._draft_name(),
            "family": model.family,
            "dtype": str(model.dtype).removeprefix("torch."),
            "weights": self.profile.models.weights or (model.codes and f"{model.codes}, as stored"),
            "device": str(model.device),
            "decoder": f"{decoder.name}: {why}" if why else decoder.name,
        }

    @property
    def pace(self) -> WindowController | None:
        """Window controller, which also needs the passes' times; None if there is none."""
        return self.setup.pace

    def needs(self, request: CaptionRequest) -> list[MemoryClaim]:
        """Return the memory that a clip needs for each model.

        A draft counts as if it saw what the target sees. A draft in another process on the target's device, whose slab
        is not known here, counts as much memory as the target.
        """
        generate, model, sound = self.profile.generate, self.target.model, request.frames.sound
        frames, height, width, _ = request.frames.frames.shape
        text = request.prompt or generate.prompt, request.system or generate.system, request.earlier
        visual = model.visual_tokens(frames, height, width)
        visual += 0 if sound is None else model.audio_tokens(len(sound))
        tokens = visual + model.text_tokens(*text)
        entries, read = tokens + self.setup_of(request).room, model.reading_bytes(visual, tokens)
        claims = [MemoryClaim(model, entries, *read)]
        if self.draft is not None and self.profile.shows_the_video:
            claims.append(MemoryClaim(self.draft.model, entries, *self.draft.model.reading_bytes(visual, tokens)))
        if self.slot is not None and self.slot.device == model.device and self.profile.shows_the_video:
            claims.append(MemoryClaim(model, 0, *read, other_slab=entries * model.decoder.slab.entry_bytes))
        if self.setup.head is not None:  # its prompt consists of states of several blocks of the target
            claims.append(
                MemoryClaim(self.setup.head.model, entries, read[0] * (1 + len(self.setup.head.model.blocks)), 0)
            )
        if self.profile.drafts_with_the_target and not self.profile.concurrent:  # after a prompt of its own
            claims.append(MemoryClaim(model, entries, 0, 0))
        return claims

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
        models = [engine.model for engine in (self.target, self.draft) if engine is not None]
        lines = [getattr(part, "note", None) for part in (*models, self.setup.drafter)]
        lines += [
            f"{model.name}: passes are not captured as graphs: {model.decoder.eager}"
            for model in models
            if model.device.type == "cuda" and model.decoder.eager is not None
        ]
        place = self.slot.device if self.slot is not None else None
        if place == self.devices[0] and place.type == "cuda":
            advice = "that they work at the same time gains nothing there: it takes a GPU for each"
            lines.append(f"{self.profile.name}: target and draft are both on {place}; {advice}")
        return tuple(dict.fromkeys(line for line in lines if line))

    def _draft_name(self) -> str | None:
        if self.draft is not None:
            return self.draft.model.name
        if self.setup.head is not None:
            return self.setup.head.model.name
        if self.slot is None or not self.profile.drafts_with_a_model:
            return None
        return "embedded/draft" if self.embedded else self.slot.model

    def caption(self, path: str | Path, **options: Unpack[CaptionOptions]) -> Caption:
        """Caption one clip; see :meth:`stream`."""
        _check_arguments("caption", options)
        for event in self._caption_one(CaptionRequest(str(path), **options), result_only=True):
            if isinstance(event, Finished):
                return event.caption
        raise AssertionError("a stream ends with Finished")

    def baseline(self, path: str | Path, **options: Unpack[CaptionOptions]) -> Caption:
        """Caption a clip by plain decoding of the same target, with the same engine, cache and kernels."""
        _check_arguments("baseline", options)
        plain = profiles.override(self.profile, _PLAIN)
        captioner = Captioner(plain, self.target.model, None, embedded=self.embedded)
        return captioner.caption(path, **options)

    def forget(self) -> None:
        """Drop the texts of earlier clips, for drafters that look tokens up in them."""
        if self.setup.drafter is not None:
            self.setup.drafter.forget()

    def warm_up(self) -> None:
        """Run everything once on a few grey frames, so that the next clip's timings include no first use."""
        grey = np.full((4, 64, 64, 3), 127, dtype=np.uint8)
        clip = video.Clip.of(grey, range(4))
        short = profiles.override(self.setup.profile, {"generate.max_new_tokens": 16})
        for profile in (short, profiles.override(short, _PLAIN)):
            draft = self.draft.model if self.draft and profile.drafts_with_a_model else None
            slot = self.slot if profile.concurrent else None
            describe = self.setup.describe
            head = self.setup.head.model if self.setup.head and profile.drafts_with_a_head else None
            captioner = Captioner(
                profile,
                self.target.model,
                draft,
                embedded=self.embedded,
                describe=describe,
                slot=slot,
                head=head,
            )
            captioner.caption("", clip=clip)

    def stream(self, path: str | Path, **options: Unpack[CaptionOptions]) -> Iterator[Event]:
        """Caption one clip, event by event.

        Args:
            path: a video file.
            options: per-call options, see :class:`CaptionOptions`.

        Yields:
            ``Opened``; ``PrefillProgress`` occasionally during the prefill of a long prompt; ``Prefilled``; one
            ``Round`` per verification; and ``Finished`` with the record. If the draft's process dies or hangs,
            ``Restarted``, and the events from ``Prefilled`` on again with a new process, once.

        Raises:
            VideoError: the file gives no frames.
            GenerationError: the prompt is too long for the model, or memory does not suffice.
            ClosedError: the captioner is closed before the clip has ended.
            ArgumentError: an argument is unknown; raised by the call itself.
        """
        _check_arguments("stream", options)
        return self._caption_one(CaptionRequest(str(path), **options))

    def dialogue(self, path: str | Path, **options: Unpack[CaptionOptions]) -> Dialogue:
        """Read a clip and return a dialogue about it: each turn continues from the caches of earlier turns.

        Args:
            path: a video file.
            options: see :class:`CaptionOptions`; ``prompt`` is ignored.

        Raises:
            VideoError: the file gives no frames.
        """
        _check_arguments("dialogue", options)
        return Dialogue(self._caption_one, self._read_request(path, options))

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
        """
        _check_arguments("captions", options)
        request = self._read_request(path, options)
        queue = PromptQueue(
            [
                replace(request, key=number, prompt=prompt, question=Question("prompt", number))
                for number, prompt in enumerate(prompts)
            ]
        )
        answers: dict[Hashable, Caption] = {}
        with closing(self.serve(queue)) as events:
            for key, event in events:
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, Prefilled) and isinstance(key, int):
                    queue.read(key)
                elif isinstance(event, Finished):
                    queue.ended()
                    answers[key] = event.caption
        return [answers[number] for number in range(len(prompts))]

    def _read_request(self, path: str | Path, options: CaptionOptions) -> CaptionRequest:
        request = CaptionRequest(str(path), **options)
        if request.clip is not None:
            return request
        return replace(request, clip=self.read(request.path, start=request.start, end=request.end))

    def _caption_one(self, request: CaptionRequest, *, result_only: bool = False) -> Generator[Event, None, None]:
        """Yield the events of one clip, or only its ``Finished``."""
        trace = Trace(synchroniser(*self.devices))
        if request.clip is None:
            with trace.span("decode_video"):
                clip = self.read(request.path, start=request.start, end=request.end, prompt=request.prompt)
            reread = partial(self.read, request.path, start=request.start, end=request.end)
            request = replace(request, clip=clip, reread=reread)
            del clip
        arrivals = SingleArrival(request)
        del request  # its frames are released once the models have encoded them
        with closing(self._serving.run(self, arrivals, batch=1, trace=trace, result_only=result_only)) as events:
            for _, event in events:
                if isinstance(event, Exception):
                    raise event
                if not isinstance(event, LoopLoad):
                    yield event

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
        return self._serving.run(self, arrivals, batch=batch, wake=wake)

    def read(
        self, path: str | Path, *, start: float | None = None, end: float | None = None, prompt: str | None = None
    ) -> video.Clip:
        """Read the frames that :meth:`stream` would pass to the models, scaled down to bound their memory.

        They are decoded in this process: a decoder that crashes on a damaged file ends it. Whole folders, and the
        command line, read in a process of their own (``vidspec.dataset.reader``).

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
            allow_damaged=wanted.allow_damaged,
            sound=self.max_sound_s,
            gpu=self.gpu,
            most_bytes=MOST_BYTES,
            check=partial(self.refuse, str(path), prompt),
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
            frames, height, width: as ``vidspec.video.read`` would return them.
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
        if threading.current_thread() is not threading.main_thread():
            self.has_feed = True
            use_one_core()
        models = self._vision_models
        outputs: dict[VideoLanguageModel, Pixels | VisionOutput] = {}
        if self._vision_worker is not None and self._vision_worker.alive:
            with suppress(OSError):  # falls back to this process
                outputs.update(zip(models, self._vision_worker.encode(clip), strict=True))
        for model in models if not outputs else ():
            pixels = model.preprocess(clip)
            outputs[model] = model.encode(pixels) if model.device.type == "cpu" else pixels
        self._precomputed[clip] = outputs
        return sum(_bytes_of(output) for output in outputs.values())

    def start_vision_worker(self) -> None:
        """Move :meth:`prepare` to a process of its own, if possible; call before other threads prepare clips."""
        if self._vision_worker is None and self._vision_models and is_available(self._vision_models):
            self._vision_worker = VisionWorker(self._vision_models)

    @property
    def _vision_models(self) -> list[VideoLanguageModel]:
        """Models in this process that encode frames."""
        engines = (self.target, self.draft if self.profile.shows_the_video else None)
        return [engine.model for engine in engines if engine is not None]

    def _with_defaults(self, request: CaptionRequest) -> CaptionRequest:
        """Return the request with profile defaults and precomputed vision output."""
        generate = self.profile.generate
        prompt, system = request.prompt or generate.prompt, request.system or generate.system
        ahead, return_probs = self._precomputed.pop(request.frames, {}), request.return_probs or self.return_probs
        return replace(request, prompt=prompt, system=system, ahead=ahead, return_probs=return_probs)

    def start(self, request: CaptionRequest, trace: Trace) -> Sequence:
        """Return the sequence of a clip whose frames have been read; its events are those of :meth:`stream`.

        Args:
            request: the clip.
            trace: times all work on the clip.
        """
        sequence, clip = Sequence(request, trace), request.clip
        if clip is not None:
            times, demo = tuple(float(t) for t in clip.timestamps), ships(self.target.model.source)
            sequence.emit(Opened(request.path, clip.facts, len(clip.frames), times, demo))
        sequence.steps = self._decode(sequence)
        return sequence

    def _decode(self, sequence: Sequence) -> Steps[None]:
        sequence.job = self._with_defaults(sequence.job)
        for attempt in (1, 2):
            try:
                if sequence.job.reread is not None and not sequence.job.frames.frames.size:
                    sequence.job = replace(sequence.job, clip=sequence.job.reread())
                sequence.attempt(self.setup_of(sequence.job))
                yield from decode(sequence)
                break
            except WorkerLost as error:
                if attempt == 2:
                    raise
                why = error.message  # not the error itself, whose traceback holds the first attempt's cache
            except torch.OutOfMemoryError as error:
                count = len(sequence.job.frames.frames)
                raise GenerationError(
                    f"{sequence.job.path}: {count} frames do not fit into the device's memory",
                    hint="fewer --frames, or a smaller dtype",
                    kind="memory",
                ) from error
            sequence.emit(Restarted(why))
        if self._can_estimate(sequence):
            sequence.deadline = None  # its text is complete
            sequence.plain_step_s = yield from time_plain_step(sequence)
        if sequence.drafter is not None:
            sequence.drafter.finish(sequence.token_ids)
        sequence.emit(Finished(report(sequence, self.models)))

    def _can_estimate(self, sequence: Sequence) -> bool:
        """Return True if plain steps after the text are as fast as plain decoding of this clip by itself."""
        undisturbed = not (sequence.shared or self.has_feed) and sequence.job.cache is None
        drafts = sequence.setup.acceptance is not None
        return self.estimates_speedup and undisturbed and drafts and not self.profile.prunes_the_target


def _check_arguments(method: str, options: CaptionOptions) -> None:
    """Reject keyword arguments that :class:`CaptionOptions` does not have."""
    for name in options.keys() - CaptionOptions.__annotations__.keys():
        closest = nearest(name, CaptionOptions.__annotations__)
        hint = f"did you mean {closest}?" if closest else f"there are {', '.join(CaptionOptions.__annotations__)}"
        raise ArgumentError(f"{method}() has no argument {name!r}", hint=hint)


def _bytes_of(vision: Pixels | VisionOutput) -> int:
    """Return the bytes of a clip's precomputed vision input or output."""
    audio = vision.audio if isinstance(vision, VisionOutput) else vision.sound
    levels = (vision.features, *vision.deepstack) if isinstance(vision, VisionOutput) else (vision.stored,)
    return sum(level.nbytes for level in levels) + (0 if audio is None else audio.nbytes)
