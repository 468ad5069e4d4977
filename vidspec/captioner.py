"""The way of the data from a path to a caption: read, see, prefill, prune, decode, record. One clip at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vidspec import profiles, video
from vidspec.acceptance.base import Acceptance
from vidspec.decoding.base import Job, Limits, Schedule, Target
from vidspec.decoding.counters import count, estimate_speedup, lengths
from vidspec.decoding.events import Event, Finished, Opened, Prefilled, Round
from vidspec.decoding.trace import Trace
from vidspec.drafting.base import Drafter
from vidspec.engine.attention import NAME
from vidspec.engine.forward import Engine, State
from vidspec.engine.sampling import Sampling
from vidspec.engine.taps import Taps
from vidspec.errors import GenerationError, ModelError, ProfileError
from vidspec.models import loading
from vidspec.models.base import Prefix, VideoLanguageModel
from vidspec.models.detokenizer import Detokenizer
from vidspec.profiles import Profile
from vidspec.pruning.base import Pruner, configured, signals_of, taps_for
from vidspec.record import Caption
from vidspec.registry import drafters, pruners, rules, schedules

__all__ = ["Captioner"]


class Captioner:
    """A profile with its models loaded; captions any number of clips, one after the other.

    Args:
        profile: complete and consistent.
        target: the loaded target.
        draft: the loaded draft, or None if the profile drafts without a model.
        embedded: whether these are the built-in models.
    """

    def __init__(
        self, profile: Profile, target: VideoLanguageModel, draft: VideoLanguageModel | None, *, embedded: bool = False
    ) -> None:
        if draft is not None:
            loading.check_pair(target, draft)
        self.profile, self.embedded = profile, embedded
        self.target, self.draft = Engine(target), Engine(draft) if draft is not None else None
        self.sampling = Sampling(profile.generate.temperature, profile.generate.top_p)
        self.acceptance: Acceptance | None = None
        self.pruner: Pruner | None = None
        if profile.draft.kind != "none":
            self.acceptance = rules.get(profile.accept.rule)(self.sampling)
        if profile.prune.method != "none":
            self.pruner = configured(pruners.get(profile.prune.method), profile.prune.model_dump(), target.layers)
            _check_watchable(self.pruner, target)
        self.schedule: Schedule = schedules.get(profile.schedule.kind)

    @classmethod
    def from_profile(cls, profile: str | Profile, *, overrides: Mapping[str, object] | None = None) -> Captioner:
        """Load what a profile names.

        Args:
            profile: a name, a YAML file, or a loaded profile.
            overrides: dotted keys that win over it, such as ``{"prune.alpha": 0.8}``.

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
        where = loading.placement(wanted.device, wanted.dtype, wanted.attention)
        embedded = wanted.pair == "embedded"
        if embedded:
            folder = loading.embedded_folder("target")
            if not (folder / "config.json").is_file():
                raise ModelError("the built-in models are missing from this installation", hint="reinstall vidspec")
            names = (str(folder), str(loading.embedded_folder("draft")))
        else:
            names = (wanted.target or "", wanted.draft or "")
        target = loading.load(names[0], where)
        draft = loading.load(names[1], where) if profile.draft.kind == "model" else None
        if embedded:
            target.name = "embedded/target"
            if draft is not None:
                draft.name = "embedded/draft"
        return cls(profile, target, draft, embedded=embedded)

    def __enter__(self) -> Captioner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the device memory the models hold; a second time does nothing."""
        if not hasattr(self, "target"):
            return
        device = self.target.model.device
        del self.target, self.draft
        if device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def models(self) -> dict[str, str | None]:
        """Names of target and draft, family, dtype and device, as the JSON record has them."""
        model = self.target.model
        return {
            "target": model.name,
            "draft": self.draft.model.name if self.draft else None,
            "family": model.family,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(model.device),
        }

    def caption(
        self, path: str | Path, *, start: float | None = None, end: float | None = None, prompt: str | None = None
    ) -> Caption:
        """Caption one clip; see :meth:`stream`."""
        for event in self.stream(path, start=start, end=end, prompt=prompt):
            if isinstance(event, Finished):
                return event.caption
        raise AssertionError("a stream ends with Finished")

    def baseline(
        self, path: str | Path, *, start: float | None = None, end: float | None = None, prompt: str | None = None
    ) -> Caption:
        """Plain decoding of the same target on the same clip, with the same engine, cache and kernels."""
        plain = profiles.override(
            self.profile, {"draft.kind": "none", "prune.method": "none", "schedule.kind": "autoregressive"}
        )
        alone = Captioner(plain, self.target.model, None, embedded=self.embedded)
        return alone.caption(path, start=start, end=end, prompt=prompt)

    def warm_up(self) -> None:
        """Run everything once on a few grey frames, so that a clip that is timed next pays for no first use."""
        grey = np.full((4, 64, 64, 3), 127, dtype=np.uint8)
        facts = video.SourceFacts("", 4.0, 64, 64, "none", "none", 1.0, False, 0, 4, "none")
        clip = video.Clip(grey, np.arange(4.0), facts)
        short = profiles.override(self.profile, {"generate.max_new_tokens": 16})
        plain = {"draft.kind": "none", "prune.method": "none", "schedule.kind": "autoregressive"}
        for profile in (short, profiles.override(short, plain)):
            draft = self.draft.model if self.draft and profile.draft.kind != "none" else None
            once = Captioner(profile, self.target.model, draft, embedded=self.embedded)
            for _ in once._generate("", clip, profile.generate.prompt, Trace()):
                pass

    def stream(
        self, path: str | Path, *, start: float | None = None, end: float | None = None, prompt: str | None = None
    ) -> Iterator[Event]:
        """Caption one clip, event by event.

        Args:
            path: a video file.
            start, end: seconds from the start of the stream; the whole clip if None.
            prompt: asked instead of the profile's.

        Yields:
            ``Opened``, ``Prefilled``, one ``Round`` per verification, and ``Finished`` with the record.

        Raises:
            VideoError: the file gives no frames.
            GenerationError: the prompt is too long for the model, or memory does not suffice.
        """
        trace = Trace(_synchroniser(self.target.model.device))
        wanted = self.profile.video
        with trace.span("decode_video"):
            clip = video.read(
                path,
                frames=wanted.frames,
                fps=wanted.fps,
                start=start,
                end=end,
                max_pixels=wanted.max_pixels,
                decoder=wanted.decoder,
            )
        yield Opened(str(path), clip.facts, len(clip.frames), tuple(float(t) for t in clip.timestamps))
        try:
            yield from self._generate(str(path), clip, prompt or self.profile.generate.prompt, trace)
        except torch.OutOfMemoryError as error:
            raise GenerationError(
                f"{path}: {len(clip.frames)} frames do not fit into the device's memory",
                hint="fewer --frames, or a smaller dtype",
                kind="memory",
            ) from error

    def _generate(self, path: str, clip: video.Clip, prompt: str, trace: Trace) -> Iterator[Event]:
        generate = self.profile.generate
        limits = Limits(generate.max_new_tokens, self.target.model.eos)
        # Every row of the last window may be written before the text is cut.
        room = generate.max_new_tokens + self.profile.draft.gamma + 1
        prefix = _read(self.target.model, clip, prompt, trace, "target")
        self._fits(path, prefix, generate.max_new_tokens)
        taps = taps_for(self.pruner.needs, prefix) if self.pruner is not None else None
        with trace.span("target_prefill"):
            state = self.target.prefill(prefix, room, taps)
        rng = torch.Generator().manual_seed(generate.seed)
        drafter, kept = self._drafter(clip, prompt, prefix, taps, room, trace, rng)
        del taps  # what was observed can be as large as the prompt
        ready = trace.now()
        yield Prefilled(
            prompt_tokens=prefix.length,
            visual_tokens=len(prefix.visual),
            kept=tuple(kept.tolist()),
            kept_per_frame=_per_frame(prefix, kept) if drafter else (),
            tokens_per_frame=_per_frame(prefix, torch.arange(len(prefix.visual))) if drafter else (),
            elapsed=ready,
        )
        job = Job(
            target=Target(self.target, state, self.sampling, rng),
            limits=limits,
            trace=trace,
            rng=rng,
            drafter=drafter,
            acceptance=self.acceptance,
            gamma=self.profile.draft.gamma,
        )
        text = Detokenizer(self.target.model.tokenizer)
        rounds: list[Round] = []
        for step in self.schedule(job):
            rounds.append(step)
            yield replace(step, texts=tuple(text.add(token) for token in step.token_ids))
        finished = trace.now()
        counters = count(rounds, drafter.forwards if drafter else 0)
        token_ids = [token for step in rounds for token in step.token_ids]
        decode = rounds[-1].elapsed
        yield Finished(
            Caption(
                path=path,
                caption=text.finish(),
                token_ids=token_ids,
                lossless=self.acceptance.lossless if self.acceptance else True,
                profile=self.profile.name,
                models=self.models,
                video={
                    **asdict(clip.facts),
                    "frames": len(clip.frames),
                    "timestamps": [round(float(t), 6) for t in clip.timestamps],
                },
                counters={
                    **asdict(counters),
                    "accepted_lengths": list(counters.accepted_lengths),
                    "visual_tokens": len(prefix.visual),
                    "visual_tokens_kept": len(kept),
                },
                lengths=lengths(counters),
                timings={
                    **trace.totals(),
                    "time_to_first_token": ready,
                    "decode": decode,
                    "end_to_end": finished,
                },
                speed={
                    "tokens_per_s": (len(token_ids) - 1) / decode if decode > 0 else None,
                    "estimate": estimate_speedup(rounds),
                },
                kept_per_frame=list(_per_frame(prefix, kept)) if drafter else [],
                trace=trace,
            )
        )

    def _fits(self, path: str, prefix: Prefix, max_new_tokens: int) -> None:
        limit = _context(self.target.model)
        if limit is not None and prefix.next_position + max_new_tokens > limit:
            raise GenerationError(
                f"{path}: a prompt of {prefix.next_position} tokens and {max_new_tokens} new ones exceed the model's "
                f"{limit}",
                hint="fewer --frames or --max-new-tokens",
                kind="context",
            )

    def _drafter(
        self,
        clip: video.Clip,
        prompt: str,
        prefix: Prefix,
        taps: Taps | None,
        room: int,
        trace: Trace,
        rng: torch.Generator,
    ) -> tuple[Drafter | None, torch.Tensor]:
        """The drafter, its prompt read, and the indices of the visual tokens it sees."""
        everything = torch.arange(len(prefix.visual))
        if self.draft is None:
            return None, everything
        own = _read(self.draft.model, clip, prompt, trace, "draft")
        if len(own.visual) != len(prefix.visual):
            raise ModelError(
                f"target and draft see a frame differently: {len(prefix.visual)} and {len(own.visual)} visual tokens",
                hint="take both from one family and generation",
            )
        kept = everything
        if self.pruner is not None:
            prune = self.profile.prune
            with trace.span("prune", "draft"):
                kept = self.pruner(signals_of(prefix, taps, prune.seed), prune.alpha)
                own = own.keep(kept.to(own.embeds.device), compact=prune.positions == "compact")
        with trace.span("draft_prefill", "draft"):
            state: State = self.draft.prefill(own, room)
        return drafters.get(self.profile.draft.kind)(self.draft, state, self.sampling, rng), kept


def _check_watchable(pruner: Pruner, target: VideoLanguageModel) -> None:
    """Only vidspec's own attention can be watched; the library's kernels keep queries and keys to themselves."""
    kernel = getattr(target, "attention", NAME)
    if kernel != NAME and any(need.startswith("attention") for need in pruner.needs):
        raise ProfileError(
            f"models.attention: {kernel} cannot be watched, which this pruner needs; "
            "nearest valid choice: models.attention: auto"
        )


def _read(model: VideoLanguageModel, clip: video.Clip, prompt: str, trace: Trace, worker: str) -> Prefix:
    """A clip and a prompt as one model reads them."""
    with trace.span("preprocess", worker):
        pixels = model.preprocess(clip)
    with trace.span("vision", worker):
        features = model.see(pixels)
        return model.prefix(features, len(clip.frames), prompt)


def _context(model: VideoLanguageModel) -> int | None:
    """How many positions the language model was made for, if it says so."""
    config = getattr(getattr(model, "language", None), "config", None)
    limit: int | None = getattr(config, "max_position_embeddings", None)
    return limit


def _per_frame(prefix: Prefix, kept: torch.Tensor) -> tuple[int, ...]:
    frame = prefix.visual.frame.cpu()[kept.cpu()]
    return tuple(torch.bincount(frame, minlength=prefix.visual.frames).tolist())


def _synchroniser(device: torch.device) -> Any:
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return torch.mps.synchronize if device.type == "mps" else lambda: None
