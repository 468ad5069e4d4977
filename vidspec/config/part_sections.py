"""The sections of a profile that name a part: their own keys, those of built-in parts, and refused combinations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from vidspec.acceptance.base import rules
from vidspec.bounds import SEED
from vidspec.config import values
from vidspec.config.sections import Section, either
from vidspec.drafting.base import DrafterKind, drafter_of, drafters
from vidspec.errors import option
from vidspec.lossy import lossy
from vidspec.pruning.base import pruners
from vidspec.registry import OptionConflict, PartOptions, Registry, key, nearest, options_of
from vidspec.schedule import schedules

if TYPE_CHECKING:
    from vidspec.config.schema import Profile


def _validate_name(registry: Registry[Any]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in registry:
            raise PydanticCustomError("name", "{complaint}", {"complaint": registry.complaint(name)})
        return name

    return check


#: The tree of SD-Tree and SpecVLM: 25 nodes, five deep (SpecVLM App. B, Fig. 9).
TREE = "0 1 2 3 | 00 01 02 10 11 20 21 30 | 000 001 002 010 011 020 021 100 | 0000 0001 0002 | 00000 00001"


def _options(registry: Registry[Any]) -> AfterValidator:
    """Return a validator of ``options`` against the part that the section names; needs the section's keys validated."""
    section, _, named = registry.key.partition(".")

    def check(given: dict[str, object], info: ValidationInfo) -> dict[str, object]:
        name = info.data.get(named)
        if name is None:  # the name is invalid and reported already
            return given
        taken = PartOptions if name in registry.always else options_of(registry.get(name), *registry.known)  # type: ignore[arg-type]
        for one in given:
            text = ""
            if one not in taken.model_fields:
                close = nearest(one, taken.model_fields)
                text = f"{name} takes {', '.join(taken.model_fields) or 'no options'}"
                text = f"unknown key; did you mean {close}? {text}" if close else f"unknown key; {text}"
            elif one in info.data and registry.owns(name):
                text = f"is a key of the section; nearest valid choice: {option(f'{section}.{one}')}"
            if text:
                wrong = PydanticCustomError("name", "{text}", {"text": text})
                raise ValidationError.from_exception_data("options", [{"type": wrong, "loc": (one,), "input": one}])
        return taken.model_validate(given).model_dump(exclude_unset=True)

    return AfterValidator(check)


class PartSection(Section):
    """A section that names a part and takes its options."""

    if TYPE_CHECKING:  # set by with_parts, after all keys
        options: dict[str, object] = Field(default_factory=dict)


S = TypeVar("S", bound=PartSection)


def with_parts(registry: Registry[Any]) -> Callable[[type[S]], type[S]]:
    """Class decorator: add the keys of built-in parts to a section, and ``options`` for all other options.

    A key is checked whichever part is named, so a profile may change the part alone.
    """

    def extended(section: type[S]) -> type[S]:
        options = Annotated[dict[str, object], key("Other options of the part"), _options(registry)]
        fields: dict[str, Any] = {
            **registry.section_keys(),
            "options": (options, Field(default_factory=dict, validate_default=True)),
        }
        return create_model(
            section.__name__, __base__=section, __module__=section.__module__, __doc__=section.__doc__, **fields
        )

    return extended


@with_parts(drafters)
class DraftSection(PartSection):
    """The drafter, and shape and length of its drafts.

    Further keys, and ``options``, here and in the sections of other parts, are parameters of the parts' constructors.
    """

    kind: Annotated[str, key("The drafter"), AfterValidator(_validate_name(drafters))] = "none"
    topology: Annotated[
        Literal["chain", "tree", "adaptive"],
        key(
            "Shape of a draft; adaptive is a chain, or a tree that grows by the draft's probabilities as far as rows "
            "and passes are worth their measured time"
        ),
    ] = "chain"
    gamma: Annotated[
        int | Literal["auto"],
        BeforeValidator(values.gamma),
        key("Length of a chain and depth of a tree; auto chooses it by measured times"),
    ] = 5
    tree: Annotated[
        str, key("Nodes of the topology tree, named by the ranks of children"), AfterValidator(values.tree)
    ] = TREE
    precision: Annotated[
        Literal["auto", "as-target", "int8", "int4"],
        key(
            "Format of the drafting model's weights: codes, unchanged (as-target), or auto, which is int8 for a draft "
            "model if that is known to make its passes cheaper, otherwise unchanged"
        ),
    ] = "auto"

    @property
    def drafter(self) -> DrafterKind | None:
        """Properties of the drafter with its options; None without one."""
        return None if self.kind == "none" else drafter_of(self)

    @property
    def has_model(self) -> bool:
        """True if a draft model is needed with the target."""
        return self.drafter is not None and self.drafter.model == "draft"

    @property
    def has_head(self) -> bool:
        """True if a head over the target's states drafts, a separate one or one in the target's checkpoint."""
        return self.drafter is not None and self.drafter.model in ("head", "layer")

    @property
    def named_head(self) -> str | None:
        """Layout of that head, if ``models.draft`` names it."""
        drafter = self.drafter
        return drafter.head if drafter is not None and drafter.model == "head" else None

    @property
    def is_target(self) -> bool:
        """True if the target drafts for itself."""
        return self.drafter is not None and self.drafter.model == "target"

    @property
    def is_free(self) -> bool:
        """True if drafting takes no pass of any model."""
        return self.drafter is not None and self.drafter.model is None

    @property
    def has_caption(self) -> bool:
        """True if one of the draft's contexts has the caption of a frame in place of the video."""
        return self.drafter is not None and "caption" in self.drafter.contexts

    @property
    def has_video(self) -> bool:
        """True if the draft sees any of the video, or there is none."""
        return self.drafter is None or self.drafter.sees != "nothing"

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        drafter, kind, concurrent = profile.drafter, self.kind, profile.concurrent
        if drafter is not None and self.topology != "chain" and not drafter.trees:
            reason = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} drafts a chain"
            yield OptionConflict("draft.topology", reason, option("draft.topology", "chain"))
        if self.topology == "adaptive" and self.is_free:
            reason = f"adaptive trees grow by the probabilities of a model, and trees of {kind} by matches in the text"
            yield OptionConflict("draft.topology", reason, option("draft.topology", "tree"))
        if concurrent and self.topology != "chain":
            instead = either(("draft.topology", "chain"), ("schedule.kind", "sequential"))
            yield OptionConflict("draft.topology", "the parallel schedule drafts a chain", instead)
        if concurrent and drafter is not None and not drafter.remote:
            reason = f"{kind} needs more of the target than token ids, which is all that the parallel schedule sends"
            instead = either(("draft.kind", "model"), ("schedule.kind", "sequential"))
            yield OptionConflict("draft.kind", reason, instead)
        if self.gamma == "auto" and self.topology == "tree" and not (drafter and drafter.paces):
            reason = f"auto applies to chains, and {option('draft.topology')} is tree"
            yield OptionConflict("draft.gamma", reason, either(("draft.gamma", 5), ("draft.topology", "chain")))
        if self.precision in ("int8", "int4") and not (self.has_model or self.is_target):
            drafts = f"a model that drafts, and {option('draft.kind')} is {kind}"
            instead = either(("draft.precision", "auto"), ("draft.kind", "self"))
            yield OptionConflict("draft.precision", f"{self.precision} applies to the weights of {drafts}", instead)
        if self.gamma == "auto" and drafter is None:
            instead = either(("draft.gamma", 5), ("draft.kind", "model"))
            yield OptionConflict("draft.gamma", "auto needs a draft", instead)


@with_parts(pruners)
class PruneSection(PartSection):
    """Pruning of the draft's visual tokens."""

    method: Annotated[str, key("The pruner"), AfterValidator(_validate_name(pruners))] = "none"
    alpha: Annotated[
        float, key("Share of the visual tokens that the draft does not see", ge=0, le=0.99, allow_inf_nan=False)
    ] = 0.9
    seed: Annotated[int, key("Seed of random pruners", ge=0, le=SEED)] = 0
    positions: Annotated[
        Literal["original", "compact"], key("Rotary positions of the kept tokens; compact has no gaps")
    ] = "original"
    when: Annotated[
        Literal["wait", "late"] | None,
        key(
            "With parallel prefill: wait, the draft reads its prompt once its visual tokens are chosen; late, it reads "
            "the whole video and its cache is pruned after the target's prefill (HIPPO); null, late for pruners that "
            "need attention over all blocks if the cache can be pruned, wait for others"
        ),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _nothing_pruned_by_none(cls, data: object) -> object:
        if isinstance(data, Mapping) and data.get("method", "none") == "none":
            return {"alpha": 0.0, **data}
        return data

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        drafter, method, kind = profile.drafter, self.method, profile.draft.kind
        if self.when == "late" and self.positions == "compact" and profile.schedule.prefill == "parallel":
            reason = f"late prunes the cache at its original positions, and {option('prune.positions')} is compact"
            yield OptionConflict("prune.when", reason, either(("prune.when", "wait"), ("prune.positions", "original")))
        if method != "none" and drafter is None:
            reason = f"{method} prunes what the draft sees, and {option('draft.kind')} is none"
            yield OptionConflict("prune.method", reason, option("prune.method", "none"))
        if method != "none" and drafter is not None and drafter.sees != "kept":
            reason = f"{method} chooses what a draft sees, and {option('draft.kind')} {kind} chooses itself"
            yield OptionConflict("prune.method", reason, option("prune.method", "none"))
        if method == "none" and self.alpha > 0:
            other = next((name for name in ("uniform", *pruners.names()) if name != "none"), "none")
            reason = f"{self.alpha:g} has no effect with {option('prune.method')} none"
            yield OptionConflict("prune.alpha", reason, either(("prune.alpha", 0), ("prune.method", other)))


class ScheduleSection(Section):
    """Order of the work of draft and target. The other keys apply to the parallel schedule."""

    kind: Annotated[str, key("The schedule"), AfterValidator(_validate_name(schedules))] = "autoregressive"
    prefill: Annotated[
        Literal["sequential", "parallel"],
        key("The draft reads its prompt after the target's prefill, or alongside it"),
    ] = "sequential"
    startup: Annotated[
        Literal["window", "fit"],
        key("Tokens drafted until the target's prefill ends: a window (ParallelVLM), or as many as fit (HIPPO)"),
    ] = "window"

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        if self.prefill == "parallel" and not profile.concurrent:
            reason = f"parallel needs two workers, and {option('schedule.kind')} is {self.kind}"
            instead = either(("schedule.prefill", "sequential"), ("schedule.kind", "parallel"))
            yield OptionConflict("schedule.prefill", reason, instead)
        drafts = schedules.get(self.kind).drafts
        if drafts and profile.drafter is None:
            reason = f"{self.kind} needs a draft, and {option('draft.kind')} is none"
            instead = either(("schedule.kind", "autoregressive"), ("draft.kind", "model"))
            yield OptionConflict("schedule.kind", reason, instead)
        if not drafts and profile.drafter is not None:
            reason = f"{self.kind} uses no draft, and {option('draft.kind')} is {profile.draft.kind}"
            instead = either(("schedule.kind", "sequential"), ("draft.kind", "none"))
            yield OptionConflict("schedule.kind", reason, instead)


@with_parts(rules)
class AcceptSection(PartSection):
    """The acceptance rule."""

    rule: Annotated[str, key("The acceptance rule"), AfterValidator(_validate_name(rules))] = "exact"
    protect: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...],
        BeforeValidator(values.words),
        key("Words, and the classes numbers and negations, that loose rules verify exactly"),
    ] = ()


@with_parts(lossy)
class LossySection(PartSection):
    """Pruning of the target itself in plain decoding, for comparison; it changes the text."""

    method: Annotated[str, key("The method"), AfterValidator(_validate_name(lossy))] = "none"
    retention: Annotated[
        float | None,
        key(
            "Share of visual tokens that a block of the target reads, on average over the blocks; the method's own "
            "shares are scaled to it",
            gt=0,
            le=1,
            allow_inf_nan=False,
        ),
    ] = None
    keep: Annotated[
        tuple[Annotated[float, Field(gt=0, le=1)], ...] | None,
        BeforeValidator(values.shares),
        key("These shares directly, as many as the method has"),
    ] = None

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        if self.method != "none" and profile.drafter is not None:
            kind = f"{option('draft.kind')} is {profile.draft.kind}"
            reason = f"{self.method} prunes the target of plain decoding, and {kind}"
            plain = f"{option('draft.kind', 'none')} with {option('schedule.kind', 'autoregressive')}"
            instead = f"{option('lossy.method', 'none')}, or {plain}"
            yield OptionConflict("lossy.method", reason, instead)
        if self.keep is not None and self.method != "none":
            shares = lossy.get(self.method).shares
            if shares != len(self.keep):
                reason = f"{self.method} takes {shares} shares, not {len(self.keep)}"
                yield OptionConflict("lossy.keep", reason, option("lossy.keep", [0.5, 0.25, 0.125][:shares]))
