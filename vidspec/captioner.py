"""The captioner, from path to caption: read, encode, prefill, prune, decode, record. One clip at a time."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from collections.abc import Sequence as Items
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from typing_extensions import Unpack

from vidspec import garbage
from vidspec.config import profiles
from vidspec.config.keywords import split_keywords
from vidspec.config.schema import Profile
from vidspec.config.user_config import read_config
from vidspec.decoding.captioner_models import CaptionerModels, build_setup, load_models
from vidspec.decoding.default_profile import resolve_profile
from vidspec.decoding.dialogue import ClipSession, Dialogue
from vidspec.decoding.engine_client import EngineClient
from vidspec.decoding.many import caption_clips, caption_prompts, in_order
from vidspec.decoding.text_stream import stream_certain_text
from vidspec.decoding.tickets import Ticket
from vidspec.engine.device import synchroniser
from vidspec.errors import ArgumentError, UsageError
from vidspec.events.events import Event, Finished
from vidspec.events.record import Caption
from vidspec.events.trace import Trace
from vidspec.models.request import CaptionOptions, CaptionRequest, make_request, prompt_list
from vidspec.models.video_language_model import VideoLanguageModel

if TYPE_CHECKING:
    from vidspec.decoding.workers.process import DraftProcessSlot
    from vidspec.models.head import Head
    from vidspec.models.image_captioner import ImageCaptioner

__all__ = ["CaptionOptions", "Captioner"]


class Captioner:
    """A profile with its models loaded; captions any number of clips, several at a time.

    One thread runs the models (:class:`~vidspec.decoding.engine_thread.EngineThread`). Any thread may call: concurrent
    calls share passes, and a text never depends on other calls.

    Args:
        profile: complete and consistent.
        target: the loaded target.
        draft: the loaded draft, or None if the profile drafts without a model.
        describe: captions a frame for an ensemble's context of that kind; the draft does it if None.
        slot: the draft's process for the parallel schedule; a new one, which loads ``draft`` again, if None.
        head: the loaded head, if the profile drafts with one.

    Attributes:
        client: what runs, servers and measurements use: submission of requests, reading ahead, the models themselves.
    """

    def __init__(
        self,
        profile: Profile,
        target: VideoLanguageModel,
        draft: VideoLanguageModel | None,
        *,
        describe: ImageCaptioner | None = None,
        slot: DraftProcessSlot | None = None,
        head: Head | None = None,
    ) -> None:
        self.client = EngineClient(build_setup(profile, CaptionerModels(target, draft, describe, slot, head)))

    @classmethod
    @garbage.loading()
    def from_profile(cls, profile: str | Path | Profile, *, overrides: Mapping[str, object] | None = None) -> Captioner:
        """Load the models of a profile.

        Args:
            profile: a name, a YAML file, or a loaded profile.
            overrides: dotted keys that override it, such as ``{"prune.alpha": 0.8}``.

        Raises:
            ArgumentError, ProfileError, ModelError, DeviceError: with a one-line message and a hint.
        """
        if isinstance(profile, str | os.PathLike):
            profile = profiles.load(str(profile), overrides)
        elif not isinstance(profile, Profile):
            raise ArgumentError(f"a profile is a name, a file or a Profile, not a {type(profile).__name__}")
        elif overrides:
            profile = profiles.override(profile, overrides)
        if profile.models.threads is not None:
            torch.set_num_threads(profile.models.threads)
        with ExitStack() as undo:
            models = load_models(profile, undo)
            captioner = cls(profile, **models._asdict())
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
        self.client.close()

    def caption(self, path: str | Path, **options: Unpack[CaptionOptions]) -> Caption:
        """Caption one clip; see :meth:`stream`."""
        (ended,) = self._caption_one(self._make_request("caption", path, options), result_only=True)
        assert isinstance(ended, Finished)
        return ended.caption

    def stream(self, path: str | Path, **options: Unpack[CaptionOptions]) -> Generator[Event, None, None]:
        """Caption one clip, event by event.

        Args:
            path: a video file.
            options: per-call options, see :class:`CaptionOptions`.

        Yields:
            ``Opened``; ``PrefillProgress`` occasionally during the prefill of a long prompt; ``Prefilled``; one
            ``Round`` per verification, with ``InputsReleased`` after the first; and ``Finished`` with the record. If
            the draft's process dies or hangs, or memory runs out among other clips, ``Restarted``, and the events
            before it again, once.

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
        return stream_certain_text(self._caption_one(request), self.client.setup_of(request).profile.generate.stop)

    def dialogue(self, path: str | Path, **options: Unpack[CaptionOptions]) -> Dialogue:
        """Read a clip and return a dialogue about it: each turn continues from the caches of earlier turns.

        Args:
            path: a video file.
            options: see :class:`CaptionOptions`; ``prompt`` is ignored.

        Raises:
            VideoError: the file gives no frames.
        """
        request = self.client.inputs.read_request(self._make_request("dialogue", path, options))
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
        session = ClipSession(replace(self.client.inputs.read_request(request), reread=None))
        session.add_prompts(enumerate(prompts))
        return caption_prompts(self.client.serve, session)

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
        serve = partial(self.client.serve, batch=batch)
        inputs, name = self.client.inputs, self.client.profile.name
        results = caption_clips(
            serve, inputs.read_ahead, requests, inputs.vision.end_feed, raises=on_error == "raise", profile=name
        )
        return in_order(results) if ordered else (caption for _, caption in results)

    def _make_request(self, method: str, path: str | Path, options: CaptionOptions) -> CaptionRequest:
        request = make_request(method, path, options)
        self.client.setup_of(request)  # refuses options that do not fit the profile
        return request

    def _caption_one(self, request: CaptionRequest, *, result_only: bool = False) -> Generator[Event, None, None]:
        """Read a clip and yield its events."""
        trace = Trace(synchroniser(*self.client.setup.devices))
        if request.clip is None:
            with trace.span("decode_video"):
                request = self.client.inputs.read_request(request)
        with Ticket(result_only=result_only) as ticket:
            self.client.submit(request, ticket, trace=trace)
            del request  # its frames are released once the models have encoded them
            yield from ticket.events()
