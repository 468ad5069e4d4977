"""A profile as a whole: its sections and the combinations of keys that make sense; no lookup, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from vidspec.config.sections import (
    AcceptSection,
    DraftSection,
    GenerateSection,
    LossySection,
    ModelsSection,
    PruneSection,
    ScheduleSection,
    Section,
    VideoSection,
    WorkersSection,
)
from vidspec.models.known_pairs import draft_of
from vidspec.models.unsupported import doubt_of
from vidspec.registry import (
    DrafterFacts,
    RuleFacts,
    configured,
    drafters,
    load_plugin,
    lossy,
    pruners,
    rules,
    schedules,
)

__all__ = ["Profile"]


def _absolute(files: Any) -> Any:
    if isinstance(files, str):
        files = [files]
    if not isinstance(files, list | tuple):
        return files
    return [str(Path(file).expanduser().resolve()) if isinstance(file, str) else file for file in files]


def _name(name: str) -> str:
    """It becomes part of a file's name by ``--name``, and of a line on a terminal."""
    if not name.isprintable() or "/" in name or "\\" in name:
        raise PydanticCustomError("profile_name", "must be printable and hold no slash")
    return name


def _loaded(files: tuple[str, ...]) -> tuple[str, ...]:
    for file in files:
        load_plugin(file)
    return files


class Profile(Section):
    """One way of captioning, complete and consistent.

    ``plugins`` are Python files that register further methods; a relative path in a profile's file starts beside it.
    """

    name: Annotated[str, AfterValidator(_name)] = Field(min_length=1)
    about: str = ""
    plugins: Annotated[tuple[str, ...], BeforeValidator(_absolute), AfterValidator(_loaded)] = ()  # before the names
    models: ModelsSection = Field(default_factory=lambda: ModelsSection())
    video: VideoSection = Field(default_factory=lambda: VideoSection())
    draft: DraftSection = Field(default_factory=lambda: DraftSection())
    prune: PruneSection = Field(default_factory=lambda: PruneSection())
    schedule: ScheduleSection = Field(default_factory=lambda: ScheduleSection())
    workers: WorkersSection = Field(default_factory=lambda: WorkersSection())
    accept: AcceptSection = Field(default_factory=lambda: AcceptSection())
    lossy: LossySection = Field(default_factory=lambda: LossySection())
    generate: GenerateSection = Field(default_factory=lambda: GenerateSection())

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """In another process the plugins are loaded again."""
        super().__setstate__(state)
        _loaded(self.plugins)

    @model_validator(mode="before")
    @classmethod
    def _empty_sections(cls, data: Any) -> Any:
        """``video:`` with nothing below it is YAML for null; take it as an empty section."""
        if isinstance(data, Mapping):
            return {key: value for key, value in data.items() if value is not None}
        return data

    @property
    def drafter(self) -> DrafterFacts | None:
        """What is known of the drafter with its options; None if there is none."""
        if self.draft.kind == "none":
            return None
        return configured(drafters.get(self.draft.kind), self.draft)

    @property
    def rule(self) -> type[RuleFacts]:
        """What is known of the acceptance rule."""
        return rules.get(self.accept.rule)

    @property
    def drafts_with_a_model(self) -> bool:
        """Whether a draft model is needed beside the target; a race has it too where a drafter without one is named."""
        if self.races and self.models.target is not None and self.models.draft is None:
            return False
        wanted = (None, "draft") if self.races else ("draft",)
        return self.drafter is not None and self.drafter.model in wanted

    @property
    def drafts_with_a_head(self) -> bool:
        """Whether a head over the target's states is needed beside it, of its own or from the target's checkpoint."""
        return self.drafter is not None and self.drafter.model in ("head", "layer")

    @property
    def names_a_head(self) -> bool:
        """Whether ``models.draft`` is that head."""
        return self.drafter is not None and self.drafter.model == "head"

    @property
    def named_models(self) -> tuple[str, ...]:
        """Hub ids and folders of all models to load, the target's first; of a built-in pair only the captioner's."""
        drafts = self.drafts_with_a_model or self.names_a_head
        wanted = (self.models.target, self.models.draft if drafts else None, self.models.captioner)
        return tuple(dict.fromkeys(name for name in wanted if name))

    @property
    def drafts_with_the_target(self) -> bool:
        """Whether the target drafts for itself."""
        return self.drafter is not None and self.drafter.model == "target"

    @property
    def drafts_for_free(self) -> bool:
        """Whether drafts take no pass of any model."""
        return self.drafter is not None and self.drafter.model is None

    @property
    def describes(self) -> bool:
        """Whether a caption of a frame stands for the video in one of the draft's contexts."""
        return self.drafter is not None and "caption" in self.drafter.contexts

    @property
    def shows_the_video(self) -> bool:
        """Whether the draft sees anything of the video."""
        return self.drafter is None or self.drafter.sees != "nothing"

    @property
    def lossless(self) -> bool:
        """Whether the text is the target's own."""
        return not self.prunes_the_target and (self.draft.kind == "none" or self.rule.lossless)

    @property
    def prunes_the_target(self) -> bool:
        """Whether the target itself does not see the whole video, which changes its text."""
        return self.lossy.method != "none"

    @property
    def chooses(self) -> bool:
        """Whether the schedule is chosen by measurement."""
        return self.schedule.kind == "auto"

    @property
    def races(self) -> bool:
        """Whether drafter, pruning, window and schedule are those of the fastest of a few lossless profiles."""
        return self.schedule.kind == "race"

    @property
    def concurrent(self) -> bool:
        """Whether target and draft work at the same time, in workers of their own."""
        return not (self.races or self.chooses) and getattr(schedules.get(self.schedule.kind), "beside", False)

    @property
    def token_for_token(self) -> bool:
        """Whether a lossless text is plain decoding's token for token, and not in distribution alone.

        Drawn texts are where every emitted token takes one draw of the same generator: without a draft, and where the
        draft's own choices are greedy, as they are in trees, beside the target, with a window that depends on times,
        and of drafters that do not draw. A chain that is drawn too is judged by rejection: it takes other draws for
        the same distribution.
        """
        if self.generate.temperature == 0 or self.drafter is None:
            return True
        greedy = self.draft.topology != "chain" or self.draft.gamma == "auto" or self.concurrent or self.races
        return (greedy or not self.drafter.draws) and self.rule.lossless

    @model_validator(mode="after")
    def _paired(self) -> Profile:
        """A published target alone takes the draft that ``vidspec pairs`` lists first for it, where one is needed."""
        models = self.models
        if not self.drafts_with_a_model or models.target is None or models.draft is not None:
            return self
        return self.model_copy(update={"models": models.model_copy(update={"draft": draft_of(models.target)})})

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        for broken, key, reason, instead in _combinations(self):
            if broken:
                raise PydanticCustomError(
                    "combination", "{text}", {"text": f"{key}: {reason}; nearest valid choice: {instead}"}
                )
        # Their constructors say which options exclude each other.
        if self.prune.method != "none":
            configured(pruners.get(self.prune.method), self.prune)
        if self.prunes_the_target:
            configured(lossy.get(self.lossy.method), self.lossy)
        return self


def _combinations(p: Profile) -> tuple[tuple[bool, str, str, str], ...]:
    """Each as: is it broken, the key to change, the reason, what to do instead."""
    models, drafter, beside = p.models, p.drafter, p.concurrent or p.chooses
    drafts, contexts = drafter is not None, drafter.contexts if drafter else ()
    undrafted = p.drafts_with_a_model and models.target is not None and models.draft is None
    doubt = doubt_of(models.target) if undrafted and models.target is not None else None
    shares = lossy.get(p.lossy.method).shares if p.prunes_the_target else None
    own = p.drafts_for_free or p.drafts_with_a_head
    sequential = p.races or p.chooses or getattr(schedules.get(p.schedule.kind), "drafts", True)
    return (
        (
            drafter is not None and p.draft.topology != "chain" and not drafter.trees,
            "draft.topology",
            f"{'an' if p.draft.kind[0] in 'aeiou' else 'a'} {p.draft.kind} drafts a chain",
            "draft.topology: chain",
        ),
        (
            len(set(contexts)) < len(contexts),
            "draft.contexts",
            "names a context twice",
            "draft.contexts: " + str(list(dict.fromkeys(contexts))).replace("'", ""),
        ),
        (
            p.draft.topology == "adaptive" and p.drafts_for_free,
            "draft.topology",
            f"adaptive trees grow by the probabilities of a model, and those of {p.draft.kind} by what it finds anyway",
            "draft.topology: tree",
        ),
        (
            models.captioner is not None and not p.describes,
            "models.captioner",
            "has no effect without an ensemble's context caption",
            "leave it out, or the profile tabed-mtcp",
        ),
        (
            p.prune.method != "none" and len(contexts) > 0 and "video" not in contexts,
            "prune.method",
            f"{p.prune.method} prunes the context video, which draft.contexts lacks",
            "prune.method: none",
        ),
        (
            p.draft.topology != "chain" and beside,
            "draft.topology",
            "the parallel schedule drafts a chain",
            "draft.topology: chain, or schedule.kind: sequential",
        ),
        (
            beside and drafter is not None and not drafter.remote,
            "draft.kind",
            f"{p.draft.kind} needs more of the target than token ids, and the parallel schedule sends no more",
            "draft.kind: model, or schedule.kind: sequential",
        ),
        (
            p.draft.gamma == "auto" and p.draft.topology == "tree" and not (drafter and drafter.paces),
            "draft.gamma",
            "auto measures chains, and draft.topology is tree",
            "draft.gamma: 5, or draft.topology: chain",
        ),
        (
            p.draft.gamma == "auto" and not drafts,
            "draft.gamma",
            "auto has no use without a draft",
            "draft.gamma: 5, or draft.kind: model",
        ),
        (
            p.races and (p.draft.topology != "chain" or not (p.draft.kind == "model" or own)),
            "draft.kind",
            "the schedule race chooses drafter and topology itself",
            "draft.kind: model with draft.topology: chain, or schedule.kind: sequential",
        ),
        (
            p.races and p.prune.method != "none",
            "prune.method",
            "the schedule race chooses the pruning itself",
            "prune.method: none, or schedule.kind: sequential",
        ),
        (
            p.schedule.prefill == "parallel" and not beside,
            "schedule.prefill",
            f"parallel needs two workers, and schedule.kind is {p.schedule.kind}",
            "schedule.prefill: sequential, or schedule.kind: parallel",
        ),
        (
            p.prune.when == "late" and p.prune.positions == "compact" and p.schedule.prefill == "parallel",
            "prune.when",
            "late prunes what has been read at its positions, and prune.positions is compact",
            "prune.when: wait, or prune.positions: original",
        ),
        (
            p.prune.method != "none" and drafter is not None and drafter.sees != "kept",
            "prune.method",
            f"{p.prune.method} chooses what a draft sees, and draft.kind {p.draft.kind} chooses itself",
            "prune.method: none",
        ),
        (
            p.generate.temperature > 0 and not p.rule.draws,
            "generate.temperature",
            f"{p.accept.rule} compares greedy choices, and {p.generate.temperature:g} draws tokens",
            "generate.temperature: 0, or accept.rule: exact",
        ),
        (
            p.prunes_the_target and drafts,
            "lossy.method",
            f"{p.lossy.method} prunes the target of plain decoding, and draft.kind is {p.draft.kind}",
            "lossy.method: none, or draft.kind: none with schedule.kind: autoregressive",
        ),
        (
            p.lossy.keep is not None and p.lossy.retention is not None,
            "lossy.keep",
            "excludes lossy.retention",
            f"lossy.retention: {p.lossy.retention} alone",
        ),
        (
            p.lossy.keep is not None and shares not in (None, len(p.lossy.keep)),
            "lossy.keep",
            f"{p.lossy.method} takes {shares} shares, not {len(p.lossy.keep or ())}",
            "lossy.keep: " + str([0.5, 0.25, 0.125][:shares]),
        ),
        (
            p.video.frames is not None and p.video.fps is not None,
            "video.fps",
            "excludes video.frames",
            f"video.frames: {p.video.frames} alone",
        ),
        (
            models.pair is not None and (models.target is not None or models.draft is not None),
            "models.pair",
            "excludes models.target and models.draft",
            f"models.pair: {models.pair} alone",
        ),
        (
            models.device_map is not None and models.device != "auto",
            "models.device",
            f"{models.device} excludes models.device_map, which takes all devices",
            "models.device: auto, and models.draft_device for the draft",
        ),
        (
            models.pair is None and models.target is None,
            "models.target",
            "is needed with models.draft",
            "name a target, or models.pair: embedded",
        ),
        (
            doubt is not None,
            "models.target",
            doubt.what if doubt else "",
            doubt.instead if doubt else "",
        ),
        (
            undrafted,
            "models.draft",
            f"is needed with draft.kind {p.draft.kind}",
            "name a draft of the target's family (`vidspec pairs` lists some), or take the profile ar",
        ),
        (
            p.names_a_head and models.target is not None and models.draft is None,
            "models.draft",
            f"is needed with draft.kind {p.draft.kind}",
            "name the head that was trained for the target, or take the profile ar",
        ),
        (
            sequential and not drafts,
            "schedule.kind",
            f"{p.schedule.kind} needs a draft, and draft.kind is none",
            "schedule.kind: autoregressive, or draft.kind: model",
        ),
        (
            not sequential and drafts,
            "schedule.kind",
            f"autoregressive has no use for a draft, and draft.kind is {p.draft.kind}",
            "schedule.kind: sequential, or draft.kind: none",
        ),
        (
            not drafts and p.prune.method != "none",
            "prune.method",
            f"{p.prune.method} prunes what the draft sees, and draft.kind is none",
            "prune.method: none",
        ),
        (
            p.prune.method == "none" and p.prune.alpha > 0,
            "prune.alpha",
            f"{p.prune.alpha:g} has no effect with prune.method none",
            "prune.alpha: 0, or prune.method: "
            + next((n for n in ("uniform", *pruners.names()) if n != "none"), "none"),
        ),
    )
