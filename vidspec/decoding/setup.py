"""The parts of a profile with their loaded models. Each part refuses what it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from vidspec.acceptance.base import AcceptanceRule, build_rule
from vidspec.config import profiles
from vidspec.config.schema import Profile
from vidspec.decoding.admission import check_prompt
from vidspec.decoding.auto import max_window, measures_passes, prunes_late
from vidspec.decoding.limits import StoppingRules
from vidspec.draft_length.costs import PassCosts
from vidspec.draft_length.pace import WindowController
from vidspec.drafting.base import DrafterKind, drafter_of
from vidspec.engine.forward import Engine
from vidspec.engine.recurrent import REACH
from vidspec.engine.requests import Steps
from vidspec.engine.sampling import Sampling
from vidspec.errors import ClosedError, ModelError, ProfileError, option
from vidspec.events.trace import Trace
from vidspec.lossy import lossy
from vidspec.models.base import EmbeddedPrompt
from vidspec.models.detokenizer import StopStrings
from vidspec.models.identity import require_quantisable
from vidspec.models.prompt import encode_prompt
from vidspec.models.request import CaptionRequest
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.pruning.base import Pruner, pruners
from vidspec.registry import build_part
from vidspec.schedule import schedules

if TYPE_CHECKING:
    import torch

    from vidspec.decoding.sequence import ScheduleFunction
    from vidspec.decoding.workers.process import DraftProcessSlot
    from vidspec.models.head import Head
    from vidspec.models.image_captioner import ImageCaptioner

#: Limits of recurrent states: key, why, the nearest valid choice, and a test whether a profile exceeds them.
STATES: tuple[tuple[str, str, str, Callable[[Profile], bool]], ...] = (
    (
        f"{option('draft.topology')}: tree or adaptive",
        "have one past",
        "chain",
        lambda p: _drafts(p) and p.draft.topology != "chain",
    ),
    (
        f"{option('draft.kind')}: sparse_kv, or self with {option('draft.prefill')} gather",
        "cannot be chosen from",
        f"{option('draft.kind', 'model')}, or {option('draft.prefill', 'again')}",
        lambda p: p.drafter is not None and p.drafter.gathers and not p.concurrent,
    ),
    (option("lossy.method"), "cannot be pruned", "none", lambda p: p.prunes_the_target),
    (
        f"{option('draft.gamma')} above {REACH // 2}",
        f"go back by {REACH} tokens",
        f"at most {REACH // 2}",
        lambda p: _drafts(p) and p.draft.gamma != "auto" and p.draft.gamma > REACH // 2,
    ),
    (
        f"{option('schedule.startup')}: fit",
        f"go back by {REACH} tokens",
        option("schedule.startup", "window"),
        lambda p: p.schedule.kind == "parallel" and p.schedule.startup == "fit",
    ),
    (
        f"{option('prune.when')}: late",
        "cannot be chosen from",
        option("prune.when", "wait"),
        lambda p: p.prune.when == "late" and p.schedule.prefill == "parallel",
    ),
)


def _drafts(profile: Profile) -> bool:
    return profile.draft.kind != "none"


def check_states(profile: Profile, target: str) -> None:
    """Reject profiles that a target with recurrent blocks does not support: the rollback of its states is bounded.

    Raises:
        ProfileError: with the nearest valid choice.
    """
    for key, reason, choice, exceeds in STATES:
        if exceeds(profile):
            raise ProfileError(f"{key}: states of recurrent blocks ({target}) {reason}; nearest valid choice: {choice}")


__all__ = ["DecodingSetup"]

#: Keys that turn a profile into plain decoding of its target.
PLAIN_DECODING: Mapping[str, object] = {
    "models.captioner": None,
    "draft.kind": "none",
    "draft.gamma": 5,
    "draft.precision": "auto",
    "prune.method": "none",
    "lossy.method": "none",
    "schedule.kind": "autoregressive",
    "schedule.prefill": "sequential",
}


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
        schedule: decodes a clip with them: the profile's schedule, or its method that prunes the target.
        needs: signals of the target's prefill that pruner and drafter read.
        window: the most tokens of a draft window.
        late: True if a draft that reads during the target's prefill prunes its cache afterwards.
        costs: measured times of passes.
        pace: chooses the windows of the sequential schedule for all clips, if ``draft.gamma`` is auto, and keeps the
            prices of passes for drafters.
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
    late: bool
    costs: PassCosts
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
            ProfileError: a part does not fit the target.
        """
        if target.decoder.cached is not None:
            check_states(profile, target.name)
        sampling = Sampling(**profile.generate.sampling)
        drafter = _build_drafter(profile, target, head)
        pruner = _build_pruner(profile, target)
        costs = PassCosts()
        observing = (drafter, pruner, head if profile.draft.has_head else None)
        return cls(
            profile,
            Engine(target),
            Engine(draft) if draft is not None else None,
            describe,
            sampling,
            build_rule(profile.accept, target, sampling) if drafter is not None else None,
            drafter,
            pruner,
            _find_schedule(profile, target),
            frozenset().union(*(part.needs for part in observing if part is not None)),
            max_window(profile),
            prunes_late(profile, pruner, target),
            costs,
            WindowController(costs) if measures_passes(profile, drafter) else None,
            Engine(head) if head is not None else None,
            slot if profile.concurrent else None,
        )

    def under(self, profile: Profile) -> DecodingSetup:
        """Return the parts of another profile with the same models, as far as it uses them."""
        return DecodingSetup.of(
            profile,
            self.target.model,
            self.draft.model if self.draft is not None and profile.draft.has_model else None,
            self.describe if profile.draft.has_caption else None,
            self.head.model if self.head is not None and profile.draft.has_head else None,
            self.slot,
        )

    def with_generate(self, options: Mapping[str, object]) -> DecodingSetup:
        """Return a setup with other values for keys of the profile's section ``generate``; it shares all models.

        Raises:
            ProfileError: an unknown key, a wrong value, or one that the profile's other parts exclude.
        """
        profile = profiles.override(self.profile, {f"generate.{key}": value for key, value in options.items()})
        sampling = Sampling(**profile.generate.sampling)
        rule = None if self.acceptance is None else build_rule(profile.accept, self.target.model, sampling)
        setup = replace(self, profile=profile, sampling=sampling, acceptance=rule)
        setup.__dict__["self_draft"] = self.self_draft  # may be a quantised copy of the target
        return setup

    @cached_property
    def for_text(self) -> DecodingSetup:
        """Setup of prompts without a video: the target's plain decoding, without a schema for the answer."""
        keys = {**PLAIN_DECODING, "generate.json_schema": None, "generate.fields": ()}
        return replace(self.under(profiles.override(self.profile, keys)), target=self.target)

    @cached_property
    def self_draft(self) -> Engine[VideoLanguageModel] | None:
        """Engine of a target that drafts for itself, with weights in the profile's draft precision.

        None if another model drafts, or the target in a process of its own.
        """
        if not self.profile.draft.is_target or self.profile.concurrent:
            return None
        precision = self.profile.draft.precision
        if precision == "int8" or precision == "int4":
            return Engine(self.target.model.quantised_copy(precision))
        return self.target

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Devices of the models in this process, the target's first."""
        return tuple(one.model.device for one in (self.target, self.draft, self.head) if one is not None)

    @property
    def vision_models(self) -> list[VideoLanguageModel]:
        """Models in this process that encode frames, the target first."""
        draft = self.draft if self.profile.draft.has_video else None
        return [engine.model for engine in (self.target, draft) if engine is not None]

    @property
    def limits(self) -> StoppingRules:
        """Stopping rules of the text."""
        generate, model = self.profile.generate, self.target.model
        stopped = None
        if generate.stop:
            stopped = StopStrings(model.tokenizer, generate.stop, thinks=model.template.thinks).has_stop
        return StoppingRules(generate.max_new_tokens, model.eos, generate.stop_loops, stopped)

    @property
    def room(self) -> int:
        """Cache entries needed after a prompt: every row of the last window may be written before the text is cut."""
        return self.profile.generate.max_new_tokens + self.window + 1

    def forget(self) -> None:
        """Drop the texts of earlier clips, for drafters that look tokens up in them."""
        if self.drafter is not None:
            self.drafter.forget()

    def read(self, request: CaptionRequest, trace: Trace) -> Steps[EmbeddedPrompt]:
        """Build and check the target's prompt.

        Raises:
            GenerationError: prompt and text would exceed the model or memory, of kind ``context`` or ``memory``.
        """
        prefix = yield from encode_prompt(self.target.model, request, trace, "target")
        check_prompt(self, request.path, prefix.length)
        return prefix


def _build_drafter(profile: Profile, target: VideoLanguageModel, head: Head | None) -> DrafterKind | None:
    if profile.draft.kind == "none":
        return None
    if profile.draft.is_target:
        require_quantisable(target, profile.draft.precision)
    if profile.draft.has_head and head is None:
        raise ModelError(
            f"draft.kind {profile.draft.kind} needs a head of {target.name}, which has none here",
            hint="name both with --target MODEL --draft HEAD",
        )
    drafter = drafter_of(profile.draft)
    drafter.prepare(target)
    return drafter


def _build_pruner(profile: Profile, target: VideoLanguageModel) -> Pruner | None:
    prune = profile.prune
    if prune.method == "none":
        return None
    return build_part(pruners.get(prune.method), prune, depth=target.layers, family=target.family)


def _find_schedule(profile: Profile, target: VideoLanguageModel) -> ScheduleFunction:
    if not profile.prunes_the_target:
        return schedules.get(profile.schedule.kind).run
    method = build_part(lossy.get(profile.lossy.method), profile.lossy)
    method.prepare(target)
    return method.run


#: Most setups kept for options of requests.
SETUPS = 64


class RequestSetups:
    """The setup of a profile and those of requests with options; all share its models, which :meth:`close` releases."""

    def __init__(self, base: DecodingSetup) -> None:
        self._base: DecodingSetup | None = base
        self._setups: dict[tuple[bool, str], DecodingSetup] = {}  # plain or not, by the options of requests

    @property
    def base(self) -> DecodingSetup:
        """The profile's setup.

        Raises:
            ClosedError: the captioner is closed.
        """
        if self._base is None:
            raise ClosedError
        return self._base

    def of(self, request: CaptionRequest) -> DecodingSetup:
        """Return the setup of a request.

        Raises:
            ClosedError: the captioner is closed.
            ProfileError: an option is unknown, or does not fit the profile.
        """
        setup = self._with_options(request)
        return setup.for_text if request.text_only else setup

    def close(self) -> DecodingSetup | None:
        """Return the profile's setup and refer to it no longer; None if that was done before."""
        base, self._base = self._base, None
        self._setups.clear()
        return base

    def _with_options(self, request: CaptionRequest) -> DecodingSetup:
        base = self.base
        if not (request.generate or request.plain):
            return base
        key = request.plain, repr(sorted(request.generate.items()))
        setup = self._setups.get(key)
        if setup is None:
            setup = base.under(profiles.override(base.profile, PLAIN_DECODING)) if request.plain else base
            setup = setup.with_generate(request.generate) if request.generate else setup
            if len(self._setups) >= SETUPS:
                self._setups.clear()
            self._setups[key] = setup
        return setup
