"""Prefill of a clip's prompts: the target's for every schedule, and the draft's where it is in this process.

The draft's own process reads its prompt by the drafter's kind, as here (:mod:`vidspec.decoding.workers.draft`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import torch

from vidspec.acceptance.base import GroundedRule, for_clip
from vidspec.decoding.part_answers import check_kept
from vidspec.decoding.sequence import Drafting, Sequence
from vidspec.decoding.target import Target
from vidspec.decoding.text_history import make_history
from vidspec.drafting.base import Drafter
from vidspec.drafting.context import DraftContext
from vidspec.engine.device import use_one_core
from vidspec.engine.requests import PrefillPrompt, Receive, Steps
from vidspec.engine.rows import PrefillResult
from vidspec.engine.sampling import Sampling
from vidspec.engine.taps import Taps
from vidspec.events.events import InputsReleased, Prefilled
from vidspec.events.wake import WakeEvent
from vidspec.models.base import EmbeddedPrompt
from vidspec.models.prefix_cache import PrefixCache, PrefixHit
from vidspec.models.prompt import share_pixels
from vidspec.pruning.base import attention_ranks, make_signals, make_taps, token_places

if TYPE_CHECKING:
    from vidspec.config.schema import Profile
    from vidspec.decoding.setup import DecodingSetup
    from vidspec.models.image_captioner import ImageCaptioner

__all__ = ["TargetPrompt", "open_target"]

#: Receives the indices of the visual tokens that the draft may see, as soon as they are known.
Publish: TypeAlias = Callable[[tuple[int, ...]], None]

Side = TypeVar("Side", bound=Target)

GREEDY = Sampling(0.0, 1.0)

T = TypeVar("T")

#: Seconds after which a loop checks for an answer without a wake event.
PATIENCE = 1.0


class BackgroundTask(Generic[T]):
    """A call in a thread; only :meth:`answer` waits for its result.

    Args:
        call: must not use a model that a loop runs.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self.wake = WakeEvent()
        self._call = call
        self._future: Future[T] = Future()
        threading.Thread(target=self._run, name="vidspec-background", daemon=True).start()

    def _run(self) -> None:
        try:
            self._future.set_result(self._call())
        except BaseException as error:  # raised again by answer()
            self._future.set_exception(error)
        self.wake.set()

    def take(self) -> list[Future[T]]:
        """Return the finished future, if any; the loop's mailbox interface."""
        return [self._future] if self._future.done() else []

    def answer(self) -> Steps[T]:
        """Wait for the result of the call.

        Raises:
            Exception: raised by the call.
        """
        while not self._future.done():
            yield Receive(self, PATIENCE, "draft")
        return self._future.result()


@dataclass
class TargetPrompt:
    """The target's prompt of one clip.

    Attributes:
        prefix: its embeddings; without them after :meth:`release`.
        cache: the prefix cache of a dialogue.
        hit: the part in it.
        taps: signals of the prefill, for pruner and drafter.
        read: result of the prefill.
        kept: indices of the visual tokens that the draft may see.
        description: caption of a frame for an ensemble's context of that kind.
        signals: ranks of the observed attention.
    """

    prefix: EmbeddedPrompt
    cache: PrefixCache | None = None
    hit: PrefixHit | None = None
    taps: Taps | None = None
    read: PrefillResult | None = None
    kept: torch.Tensor | None = None
    description: str | None = None
    signals: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def embed(cls, sequence: Sequence, cache: PrefixCache | None = None) -> Steps[TargetPrompt]:
        """Encode the clip and embed the prompt."""
        setup = sequence.setup
        sequence.job = yield from share_pixels(setup.vision_models, sequence.job, sequence.trace)
        prefix = yield from setup.read(sequence.job, sequence.trace)
        hit = _find_prefix(setup, cache, prefix)
        text_only = setup.pruner is None and not setup.profile.draft.has_video  # a head that does not see the video
        return cls(prefix, cache, hit, make_taps(setup.needs, prefix, text_only=text_only) if hit is None else None)

    def choose(self, sequence: Sequence, worker: str) -> tuple[int, ...]:
        """Choose the visual tokens that the draft may see; timed in the lane of the model that chooses.

        In a dialogue they stay those of the turn that read the video, until it is read again.
        """
        setup, cache = sequence.setup, self.cache
        if cache is not None and cache.kept is not None and self.hit is not None:
            self.kept = cache.kept[1]
        elif setup.pruner is None:
            self.kept = torch.arange(len(self.prefix.visual) if setup.profile.draft.has_video else 0)
        else:
            prune = setup.profile.prune
            with sequence.trace.span("prune", worker):
                self.kept = setup.pruner(make_signals(self.prefix, self.taps, prune.seed), prune.alpha)
            check_kept(sequence, self.kept, len(self.prefix.visual), prune.alpha)
        if cache is not None:
            cache.kept = setup.pruner, self.kept
        return tuple(self.kept.tolist())

    def release(self) -> None:
        """Drop embeddings, observations and results once both prompts have been read."""
        self.prefix, self.taps, self.hit, self.read = self.prefix.outline(), None, None, None

    def prefilled(self, profile: Profile, elapsed: float) -> Prefilled:
        """Return the event of the prefilled prompt, ``elapsed`` seconds after the trace began."""
        assert self.kept is not None
        prefix, kept, drafts = self.prefix, self.kept, profile.draft.kind != "none"
        grid, cells = token_places(prefix.visual)
        return Prefilled(
            prompt_tokens=prefix.length,
            visual_tokens=len(prefix.visual),
            kept=tuple(kept.tolist()),
            kept_per_frame=_tokens_per_frame(prefix, kept) if drafts else (),
            tokens_per_frame=_tokens_per_frame(prefix, torch.arange(len(prefix.visual))) if drafts else (),
            elapsed=elapsed,
            grid=grid,
            cells=cells,
            views=prefix.visual.views,
            contexts=profile.drafter.contexts if profile.drafter else (),
            caption=self.description,
            lossless=profile.lossless,
            audio_tokens=len(prefix.audio),
            signals=self.signals,
        )


def prefill_target(sequence: Sequence, prompt: TargetPrompt, publish: Publish | None = None) -> Steps[None]:
    """Prefill the target and choose the visual tokens of the draft; makes the target's side of the sequence.

    Args:
        sequence: the clip.
        prompt: its embedded prompt.
        publish: given if the draft prefills at the same time: it gets the tokens that a pruner chooses, during the
            prefill if their signals exist by then and the draft waits for them.
    """
    setup = sequence.setup

    def choose() -> None:
        kept = prompt.choose(sequence, "draft" if publish is None else "target")
        if publish is not None and setup.pruner is not None:
            publish(kept)

    if publish is not None and setup.pruner is not None and not setup.late:
        if prompt.taps is None:
            choose()
        else:
            prompt.taps.ready = choose
    read = prompt.read = yield from _read_prompt(sequence, prompt)
    if prompt.kept is None:
        choose()
    prompt.signals = attention_ranks(prompt.taps)
    sequence.target = open_target(sequence, prompt, read, Target)


def open_target(sequence: Sequence, prompt: TargetPrompt, read: PrefillResult, kind: type[Side]) -> Side:
    """Return the target's side of a clip whose prompt has been read."""
    setup = sequence.setup
    return kind(
        setup.target,
        read,
        setup.sampling,
        torch.Generator().manual_seed(sequence.seed),
        acceptance=for_clip(setup.acceptance, read.visual_states) if setup.acceptance else None,
        return_probs=sequence.job.return_probs,
        history=make_history(setup.profile.generate, setup.target.model, prompt.prefix.token_ids),
    )


def prefill(sequence: Sequence) -> Steps[bool]:
    """Prefill the target, emit its first token, and open the draft; return True if the text ends with that token."""
    setup = sequence.setup
    prompt = yield from TargetPrompt.embed(sequence, sequence.job.cache)
    yield from prefill_target(sequence, prompt)
    sequence.emit(prompt.prefilled(setup.profile, sequence.trace.now()))
    over = sequence.emit_first()
    if setup.drafter is not None and not over:
        opened = yield from setup.drafter.open(_draft_context(sequence, prompt))
        sequence.drafting = _begin_drafting(sequence, opened)
    prompt.release()
    sequence.emit(InputsReleased(sequence.trace.now()))
    return over


def _begin_drafting(sequence: Sequence, drafter: Drafter) -> Drafting:
    """Return the draft's side of a clip that has emitted its first token."""
    setup, target = sequence.setup, sequence.target
    drafter.history, target.tapped = target.history, drafter.tapped
    gamma = setup.window if setup.profile.draft.gamma == "auto" else setup.profile.draft.gamma
    opened = setup.pace.window() if setup.pace is not None else None
    if setup.pace is not None and opened is not None and drafter.paces:
        drafter.set_pace(setup.pace, opened)
    drafter.begin(sequence.token_ids[0])
    return Drafting(drafter, gamma, None if drafter.paces else opened, opened)


def _draft_context(sequence: Sequence, prompt: TargetPrompt) -> DraftContext:
    setup = sequence.setup
    draws = setup.profile.samples_drafts
    return DraftContext(
        profile=setup.profile,
        request=sequence.job,
        sampling=setup.sampling if draws else GREEDY,
        rng=sequence.target.rng if draws else torch.Generator(),
        room=setup.room,
        trace=sequence.trace,
        tokens=len(prompt.prefix.visual),
        kept=prompt.kept,
        draft=setup.draft,
        head=setup.head,
        self_draft=setup.self_draft,
        target=setup.target,
        prefix=prompt.prefix,
        read_by_target=prompt.read,
        taps=prompt.taps,
        caption=prompt.description,
    )


def _read_prompt(sequence: Sequence, prompt: TargetPrompt) -> Steps[PrefillResult]:
    """Prefill the target, and caption a frame if the draft is an ensemble with a context for it.

    The captioner needs nothing from the target, and runs during its prefill if it can (TABED 6.2).
    """
    setup, trace, cache = sequence.setup, sequence.trace, prompt.cache
    prompt.description = cache.description if cache is not None else None
    captioner = setup.describe if prompt.description is None else None
    with ExitStack() as meanwhile:
        task: BackgroundTask[str] | None = None
        if captioner is not None and captioner.beside:
            task = BackgroundTask(partial(_caption_frames, sequence, captioner))
            meanwhile.enter_context(captioner.sharing())
        elif captioner is not None:
            with trace.span("caption", "draft"):
                prompt.description = yield from captioner.steps(sequence.job.frames)
        with trace.span("target_prefill"):
            read = yield from _run_passes(setup, prompt)
        if task is not None:
            prompt.description = yield from task.answer()
    if cache is not None:
        cache.description = prompt.description
    return read


def _run_passes(setup: DecodingSetup, prompt: TargetPrompt) -> Steps[PrefillResult]:
    """Run the passes over the prompt, with the visual states that the acceptance rule needs."""
    states, cache, hit = isinstance(setup.acceptance, GroundedRule), prompt.cache, prompt.hit
    read = yield PrefillPrompt(
        setup.target, prompt.prefix, setup.room, prompt.taps, states=states and hit is None, cached=hit
    )
    if cache is not None:
        cache.read(setup.target.model, prompt.prefix, read.span, hit)
        if hit is None:
            cache.states = read.visual_states
        read = read._replace(visual_states=cache.states)
    return read  # type: ignore[no-any-return]


def _find_prefix(setup: DecodingSetup, cache: PrefixCache | None, prefix: EmbeddedPrompt) -> PrefixHit | None:
    """Return the cached part of the target's prompt from earlier turns of a dialogue; None to read all of it again.

    The cached prefix is not reused if a drafter, or a pruner that has not chosen yet, needs signals of the target's
    prefill.
    """
    if cache is None:
        return None
    pruner, chosen = setup.pruner, cache.kept[0] if cache.kept is not None else None
    if setup.needs - (pruner.needs if pruner is not None else frozenset()) or chosen is not pruner:
        return None
    if isinstance(setup.acceptance, GroundedRule) and cache.states is None:
        return None
    hit = cache.find(setup.target.model, prefix)
    video_cached = not len(prefix.visual) or (hit is not None and hit.rows > int(prefix.visual.index[-1]))
    return hit if video_cached else None


def _caption_frames(sequence: Sequence, captioner: ImageCaptioner) -> str:
    """Return the captioner's text; runs in another thread."""
    use_one_core()
    begun = sequence.trace.elapsed()
    text = captioner(sequence.job.frames)
    sequence.trace.add("caption", "draft", begun, sequence.trace.elapsed())
    return text


def _tokens_per_frame(prefix: EmbeddedPrompt, kept: torch.Tensor) -> tuple[int, ...]:
    frame = prefix.visual.frame.cpu()[kept.cpu()]
    return tuple(torch.bincount(frame, minlength=prefix.visual.frames).tolist())
