"""The parts of a profile with their loaded models, checked against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch

from vidspec.acceptance.base import AcceptanceRule, GroundedRule, rules
from vidspec.acceptance.protect import protected_ids
from vidspec.config.profiles import Profile
from vidspec.decoding.limits import StoppingRules
from vidspec.draft_length.pace import WindowController
from vidspec.draft_length.trees import MOST
from vidspec.drafting.base import DrafterKind, drafter_of
from vidspec.drafting.static_tree import parse_tree
from vidspec.engine.device import free_memory
from vidspec.engine.forward import Engine
from vidspec.engine.penalties import PenaltyHistory, make_history
from vidspec.engine.recurrent import REACH
from vidspec.engine.requests import Encode, PrefillPrompt, Steps
from vidspec.engine.rows import PrefillResult
from vidspec.engine.sampling import Sampling
from vidspec.engine.taps import Taps
from vidspec.errors import GenerationError, ModelError, ProfileError
from vidspec.events.events import Prefilled
from vidspec.events.trace import Trace
from vidspec.models.base import EmbeddedPrompt
from vidspec.models.detokenizer import StopStrings
from vidspec.models.head import Head
from vidspec.models.image_captioner import ImageCaptioner
from vidspec.models.prefix_cache import PrefixCache, PrefixHit
from vidspec.models.prompt import encode_prompt
from vidspec.models.request import CaptionRequest
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.pruning.base import Pruner, make_signals, pruners
from vidspec.pruning.placement import token_places
from vidspec.pruning.target.base import lossy
from vidspec.pruning.target.engine import PrunedTargetEngine
from vidspec.registry import build_part
from vidspec.schedule import schedules

if TYPE_CHECKING:
    from vidspec.decoding.sequence import ScheduleFunction
    from vidspec.decoding.workers.slot import DraftProcessSlot

__all__ = ["ROWS", "STATES", "DecodingSetup", "prefilled"]

#: The most rows of one target pass in the parallel schedule, and nodes of a tree that grows.
ROWS = MOST


@dataclass
class DecodingSetup:
    """The parts of one profile, with their models.

    Attributes:
        profile: the settings.
        target, draft: the models' engines; the draft is None if the target or another process drafts, or no model.
        head: engine of a head over the target's states, if one drafts.
        describe: captions a frame for an ensemble's context of that kind.
        sampling: sampling parameters.
        acceptance, drafter, pruner: None if the profile has none.
        schedule: decodes a prefilled sequence with them.
        needs: signals of the target's prefill that pruner and drafter read.
        window: the most tokens of a draft window.
        pace: chooses the windows of the sequential schedule for all clips, if ``draft.gamma`` is auto, and keeps the
            cost of passes for drafters.
        slot: the draft's process, for the parallel schedule only.
    """

    profile: Profile
    target: Engine[VideoLanguageModel]
    draft: Engine[VideoLanguageModel] | None
    describe: ImageCaptioner | None
    sampling: Sampling
    acceptance: AcceptanceRule | None
    drafter: DrafterKind | None
    pruner: Pruner | None
    schedule: ScheduleFunction
    needs: frozenset[str]
    window: int
    pace: WindowController | None = None
    head: Engine[Head] | None = None
    slot: DraftProcessSlot | None = None

    @classmethod
    def of(
        cls,
        profile: Profile,
        target: VideoLanguageModel,
        draft: VideoLanguageModel | None,
        describe: ImageCaptioner | None,
        head: Head | None = None,
        slot: DraftProcessSlot | None = None,
    ) -> DecodingSetup:
        """Build the parts a profile names.

        Raises:
            ModelError: it drafts with a head, and there is none.
            ProfileError: the target keeps states, and a part cannot roll them back.
        """
        if target.decoder.cached is not None:
            _check_states(profile, target.name)
        if profile.prunes_the_target and not target.decoder.prunable:
            raise ProfileError(
                f"lossy.method: blocks of {target.family} cannot go on with fewer rows; nearest valid choice: none"
            )
        if (
            profile.draft.precision in ("int8", "int4")
            and profile.drafts_with_the_target
            and target.unquantisable_reason is not None
        ):
            raise ProfileError(
                f"draft.precision {profile.draft.precision}: {target.name}: {target.unquantisable_reason}; "
                "nearest valid choice: as-target"
            )
        sampling = Sampling(**profile.generate.sampling)
        acceptance: AcceptanceRule | None = None
        drafter: DrafterKind | None = None
        pruner: Pruner | None = None
        needs: set[str] = set()
        paces = False
        if profile.draft.kind != "none":
            acceptance = _acceptance(profile, target, sampling)
            drafter = drafter_of(profile.draft)
            drafter.prepare(target)
            needs |= drafter.needs
            if profile.drafts_with_a_head:
                if head is None:
                    raise ModelError(
                        f"draft.kind {profile.draft.kind} needs a head of {target.name}, which has none here",
                        hint="--target MODEL --draft HEAD",
                    )
                needs |= head.needs
            paces = drafter.paces or profile.draft.topology == "adaptive"
        if profile.prune.method != "none":
            prune = profile.prune
            known = {"depth": target.layers, "family": target.family}
            pruner = build_part(pruners.get(prune.method), prune, **known)
            needs |= pruner.needs
        return cls(
            profile,
            _engine(profile, target),
            Engine(draft) if draft is not None else None,
            describe,
            sampling,
            acceptance,
            drafter,
            pruner,
            schedules.get(profile.schedule.kind).run,
            frozenset(needs),
            _max_window(profile),
            WindowController() if (profile.draft.gamma == "auto" or paces) and not profile.concurrent else None,
            Engine(head) if head is not None else None,
            slot if profile.concurrent else None,
        )

    @cached_property
    def self_draft(self) -> Engine[VideoLanguageModel] | None:
        """Engine of a target that drafts for itself, with weights in the profile's draft precision.

        None if another model drafts, or the target in a process of its own.
        """
        if not self.profile.drafts_with_the_target or self.profile.concurrent:
            return None
        precision = self.profile.draft.precision
        if precision == "int8" or precision == "int4":
            return Engine(self.target.model.quantised_copy(precision))
        return self.target

    @property
    def lossless(self) -> bool:
        """True if the text is the target's own."""
        return self.profile.lossless

    @property
    def limits(self) -> StoppingRules:
        """Stopping rules of the text."""
        generate, model = self.profile.generate, self.target.model
        stopped = StopStrings(model.tokenizer, generate.stop).has_stop if generate.stop else None
        return StoppingRules(generate.max_new_tokens, model.eos, generate.stop_loops, stopped)

    @property
    def room(self) -> int:
        """Cache entries needed after a prompt: every row of the last window may be written before the text is cut."""
        return self.profile.generate.max_new_tokens + self.window + 1

    @property
    def late(self) -> bool:
        """True if a draft that reads during the target's prefill reads the whole video and prunes its cache afterwards.

        States of recurrent blocks cannot be pruned, and positions that were rotated into the keys cannot be compacted.
        """
        prune, pruner = self.profile.prune, self.pruner
        if pruner is None or self.profile.schedule.prefill == "sequential":
            return False
        if prune.when is not None:
            return prune.when == "late"
        prunable = prune.positions == "original" and self.target.model.decoder.cached is None
        return prunable and not pruner.needs.isdisjoint(("attention", "visual_attention"))

    def history(self, prefix: EmbeddedPrompt) -> PenaltyHistory | None:
        """Return the history of a clip after its prompt, for penalties; None if the profile has none."""
        return make_history(self.profile.generate.penalties, prefix.token_ids)

    def read(self, request: CaptionRequest, trace: Trace) -> Steps[EmbeddedPrompt]:
        """Build and check the target's prompt.

        Raises:
            GenerationError: prompt and text would exceed the model's context length.
        """
        prefix = yield from encode_prompt(self.target.model, request, trace, "target")
        self.check(request.path, prefix.length)
        return prefix

    def check(self, path: str, prompt: int) -> None:
        """Reject a prompt of at least ``prompt`` tokens that, with the text after it, exceeds the model or memory.

        Tokens count, even if a family numbers many of them with few positions (M-RoPE).

        Raises:
            GenerationError: of kind ``context`` or ``memory``.
        """
        model, tokens = self.target.model, self.profile.generate.max_new_tokens
        limit, free = _context_length(model), free_memory(model.device)
        if limit is not None and prompt + tokens > limit:
            raise GenerationError(
                f"{path}: a prompt of {prompt} tokens and {tokens} new ones exceed the model's {limit}",
                hint="fewer --frames, a lower --fps or fewer --max-new-tokens",
                kind="context",
            )
        needed = model.decoder.slab.growth_bytes(prompt + self.room) + model.decoder.state_bytes
        if free is not None and needed > free:
            raise GenerationError(
                f"{path}: the KV cache of {prompt + tokens} tokens takes {needed / 2**30:.1f} GiB, "
                f"and {free / 2**30:.1f} are free",
                hint="fewer --frames, a lower --fps or a smaller --max-pixels",
                kind="memory",
            )

    def find_prefix(self, cache: PrefixCache | None, prefix: EmbeddedPrompt) -> PrefixHit | None:
        """Return the cached part of the target's prompt from earlier turns of a dialogue; None to read all of it again.

        The cached prefix is not reused if a drafter, or a pruner that has not chosen yet, needs signals of the target's
        prefill, or if the target itself is pruned.
        """
        if cache is None or self.target.alone:
            return None
        pruner, chosen = self.pruner, cache.kept[0] if cache.kept is not None else None
        if self.needs - (pruner.needs if pruner is not None else frozenset()) or chosen is not pruner:
            return None
        if isinstance(self.acceptance, GroundedRule) and cache.states is None:
            return None
        hit = cache.find(self.target.model, prefix)
        video_cached = not len(prefix.visual) or (hit is not None and hit.rows > int(prefix.visual.index[-1]))
        return hit if video_cached else None

    def prefill(
        self, prefix: EmbeddedPrompt, taps: Taps | None, cache: PrefixCache | None = None, hit: PrefixHit | None = None
    ) -> Steps[PrefillResult]:
        """Prefill the target's prompt, with the visual states that the acceptance rule needs.

        Args:
            prefix: the prompt.
            taps: observers of the passes.
            cache: cache of a dialogue: keeps the sequence for later turns.
            hit: the cached part.
        """
        states = isinstance(self.acceptance, GroundedRule)
        if self.target.alone:
            call = partial(self.target.prefill, prefix, self.room, taps, states=states)
            return (yield Encode(call))  # type: ignore[no-any-return]
        read = yield PrefillPrompt(self.target, prefix, self.room, taps, states=states and hit is None, cached=hit)
        if cache is not None:
            cache.read(self.target.model, prefix, read.span, hit)
            if hit is None:
                cache.states = read.visual_states
            read = read._replace(visual_states=cache.states)
        return read  # type: ignore[no-any-return]

    def kept(
        self,
        prefix: EmbeddedPrompt,
        taps: Taps | None,
        trace: Trace,
        worker: str = "draft",
        cache: PrefixCache | None = None,
        hit: PrefixHit | None = None,
    ) -> torch.Tensor:
        """Return the indices of the visual tokens the drafter may see; timed in the lane of the model that chooses.

        In a dialogue they stay those of the turn that read the video, until it is read again (``hit`` is None).
        """
        if cache is not None and cache.kept is not None and hit is not None:
            return cache.kept[1]
        if self.pruner is None:
            kept = torch.arange(len(prefix.visual) if self.profile.shows_the_video else 0)
        else:
            prune = self.profile.prune
            with trace.span("prune", worker):
                kept = self.pruner(make_signals(prefix, taps, prune.seed), prune.alpha)
        if cache is not None:
            cache.kept = self.pruner, kept
        return kept


def prefilled(
    profile: Profile,
    prefix: EmbeddedPrompt,
    kept: torch.Tensor,
    elapsed: float,
    description: str | None = None,
    kept_per_layer: tuple[int, ...] = (),
    signals: tuple[tuple[str, bytes], ...] = (),
) -> Prefilled:
    """Return the event of two prefilled prompts."""
    grid, cells = token_places(prefix.visual)
    drafts = profile.draft.kind != "none"
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
        caption=description,
        lossless=profile.lossless,
        kept_per_layer=kept_per_layer,
        audio_tokens=len(prefix.audio),
        signals=signals,
    )


def _engine(profile: Profile, target: VideoLanguageModel) -> Engine[VideoLanguageModel]:
    if not profile.prunes_the_target:
        return Engine(target)
    method = build_part(lossy.get(profile.lossy.method), profile.lossy)
    return PrunedTargetEngine(target, method)


def _acceptance(profile: Profile, target: VideoLanguageModel, sampling: Sampling) -> AcceptanceRule:
    accept = profile.accept
    protected = protected_ids(target.tokenizer, accept.protect) if accept.protect else frozenset()
    return build_part(rules.get(accept.rule), accept, sampling=sampling, eos=target.eos, protected=protected)


def _max_window(profile: Profile) -> int:
    draft = profile.draft
    if draft.kind == "none":
        return 0
    if profile.concurrent:
        return ROWS
    if draft.topology == "tree":
        return len(parse_tree(draft.tree))
    return ROWS if draft.gamma == "auto" or draft.topology == "adaptive" else draft.gamma


def _context_length(model: VideoLanguageModel) -> int | None:
    """Return the context length of the language model, if its config has one."""
    config = getattr(getattr(model, "language", None), "config", None)
    limit: int | None = getattr(config, "max_position_embeddings", None)
    return limit


def _tokens_per_frame(prefix: EmbeddedPrompt, kept: torch.Tensor) -> tuple[int, ...]:
    frame = prefix.visual.frame.cpu()[kept.cpu()]
    return tuple(torch.bincount(frame, minlength=prefix.visual.frames).tolist())


#: Limits of recurrent states: key, why, the nearest valid choice, and a test whether a profile exceeds them.
STATES: tuple[tuple[str, str, str, Callable[[Profile], bool]], ...] = (
    (
        "draft.topology: tree or adaptive",
        "have one past",
        "chain",
        lambda p: _drafts(p) and p.draft.topology != "chain",
    ),
    (
        "draft.kind: sparse_kv, or self with draft.prefill: gather",
        "cannot be chosen from",
        "draft.kind: model, or self with draft.prefill: again",
        lambda p: p.drafter is not None and p.drafter.gathers and not p.concurrent,
    ),
    ("lossy.method", "cannot be pruned", "none", lambda p: p.prunes_the_target),
    (
        f"draft.gamma above {REACH // 2}",
        f"go back by {REACH} tokens",
        f"at most {REACH // 2}",
        lambda p: _drafts(p) and p.draft.gamma != "auto" and p.draft.gamma > REACH // 2,
    ),
    (
        "schedule.startup: fit",
        f"go back by {REACH} tokens",
        "schedule.startup: window",
        lambda p: p.schedule.kind == "parallel" and p.schedule.startup == "fit",
    ),
    (
        "prune.when: late",
        "cannot be chosen from",
        "prune.when: wait",
        lambda p: p.prune.when == "late" and p.schedule.prefill == "parallel",
    ),
)


def _drafts(profile: Profile) -> bool:
    return profile.draft.kind != "none"


def _check_states(profile: Profile, target: str) -> None:
    """Reject profiles that a target with recurrent blocks does not support: the rollback of its states is bounded."""
    for key, reason, choice, exceeds in STATES:
        if exceeds(profile):
            raise ProfileError(f"{key}: states of recurrent blocks ({target}) {reason}; nearest valid choice: {choice}")
