"""The schema of a profile: its sections, checks across them, and derived properties. No lookup, no torch."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from vidspec.acceptance.base import AcceptanceRule, rules
from vidspec.config.part_sections import AcceptSection, DraftSection, LossySection, PruneSection, ScheduleSection
from vidspec.config.sections import GenerateSection, ModelsSection, Section, VideoSection, WorkersSection
from vidspec.drafting.base import DrafterKind, drafters
from vidspec.errors import ProfileError, option
from vidspec.lossy import lossy
from vidspec.models.base import families
from vidspec.models.known_pairs import listed_draft
from vidspec.pruning.base import pruners
from vidspec.registry import OptionConflict, Registry, build_part
from vidspec.schedule import schedules

#: Registries by the name of their kind of part.
PARTS: dict[str, Registry[Any]] = {
    registry.part: registry for registry in (pruners, drafters, rules, schedules, families, lossy)
}


def names(part: str) -> tuple[str, ...]:
    """Return the valid names of ``pruning``, ``drafting``, ``acceptance``, ``schedules``, ``families`` or ``lossy``."""
    return PARTS[part].names()


def load_plugin(file: str | os.PathLike[str]) -> None:
    """Run a Python file that registers parts, once per process.

    Args:
        file: not part of any package; its parts have the names it registers.

    Raises:
        ProfileError: the file cannot be read, fails, or registers the name of a built-in part.
    """
    path = Path(file).expanduser().resolve()
    # Two files of one name are two modules.
    name = f"vidspec_plugin_{path.stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ProfileError(f"plugins: {path}: " + ("must end in .py" if path.is_file() else "there is no such file"))
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        for registry in PARTS.values():
            registry.refuse_own_names(name)
    except Exception as error:
        del sys.modules[name]
        for registry in PARTS.values():
            registry.forget(name)
        raise ProfileError(f"plugins: {path}: {type(error).__name__}: {error}") from error


#: Keys that exclude groups of others: setting one drops what lower layers set in the other group.
EXCLUSIVE_KEYS = (
    (("video.fps",), ("video.frames",)),
    (("lossy.keep",), ("lossy.retention",)),
    (("models.pair",), ("models.target", "models.draft")),
)
#: Keys that do not affect captions. Threads and packed weights may change the last bits of a sum, which is not meant to
#: change a caption.
_NOT_IN_CAPTIONS = ("name", "about", "models.device", "models.threads", "models.packed", "workers", "video.stall")


def _absolute(files: object) -> object:
    if isinstance(files, str):
        files = [files]
    if not isinstance(files, list | tuple):
        return files
    return [str(Path(file).expanduser().resolve()) if isinstance(file, str) else file for file in files]


def _name(name: str) -> str:
    """Validate a name, which becomes part of file names (``--name``) and of lines on a terminal."""
    if not name.isprintable() or "/" in name or "\\" in name:
        raise PydanticCustomError("profile_name", "must be printable and hold no slash")
    return name


def _load_plugins(files: tuple[str, ...]) -> tuple[str, ...]:
    for file in files:
        load_plugin(file)
    return files


class Profile(Section):
    """Complete and consistent settings of a captioner.

    ``plugins`` are Python files that register further methods; paths are relative to the profile's file.
    """

    name: Annotated[str, AfterValidator(_name)] = Field(min_length=1)
    about: str = ""
    plugins: Annotated[
        tuple[str, ...], BeforeValidator(_absolute), AfterValidator(_load_plugins)
    ] = ()  # before the names
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
        """Load the plugins again in another process."""
        super().__setstate__(state)
        _load_plugins(self.plugins)

    @cached_property
    def caption_keys(self) -> str:
        """Keys that may change a caption, as JSON; without the name, devices and speed."""
        own = {key: value for key, value in self.model_dump().items() if key not in _NOT_IN_CAPTIONS}
        for key, value in own.items():
            if isinstance(value, Mapping):
                own[key] = {name: one for name, one in value.items() if f"{key}.{name}" not in _NOT_IN_CAPTIONS}
        return json.dumps(own, sort_keys=True, default=str)

    @property
    def drafter(self) -> DrafterKind | None:
        """Properties of the drafter with its options; None without one."""
        return self.draft.drafter

    @property
    def rule(self) -> type[AcceptanceRule]:
        return rules.get(self.accept.rule)

    @property
    def named_models(self) -> tuple[str, ...]:
        """Hub ids and folders of all models to load, the target first; for a built-in pair the captioner only."""
        drafts = self.draft.has_model or self.draft.named_head
        wanted = (self.models.target, self.models.draft if drafts else None, self.models.captioner)
        return tuple(dict.fromkeys(name for name in wanted if name))

    @property
    def lossless(self) -> bool:
        """True if the text is the target's own."""
        return not self.prunes_the_target and (self.draft.kind == "none" or self.rule.lossless)

    @property
    def prunes_the_target(self) -> bool:
        """True if visual tokens of the target itself are pruned, which changes its text."""
        return self.lossy.method != "none"

    @property
    def concurrent(self) -> bool:
        """True if target and draft work at the same time, the draft in a process of its own."""
        return schedules.get(self.schedule.kind).concurrent

    @property
    def takes_second_gpu(self) -> bool:
        """True if the draft goes on a second GPU by default: it is a separate model, and no device is named.

        A head reads the target's states, and a self-drafting target shares its weights or its cache.
        """
        named = (self.workers.target, self.workers.draft, self.models.draft_device, self.models.device_map)
        return self.draft.has_model and self.models.device == "auto" and not any(named)

    @property
    def token_for_token(self) -> bool:
        """True if the text equals plain decoding's token for token, not only in distribution.

        Greedy texts always do. Sampled texts do if every emitted token takes one draw of the clip's generator: without
        a draft, and if the draft tokens are greedy (:attr:`samples_drafts`). A sampled chain is verified by rejection
        sampling, which takes other draws for the same distribution.
        """
        if self.generate.temperature == 0:
            return True
        return self.generate.seed >= 0 and not self.samples_drafts and (self.drafter is None or self.rule.lossless)

    @property
    def samples_drafts(self) -> bool:
        """True if drafted tokens are sampled as the target's are, with numbers of the clip's generator.

        Not if they are chosen greedily: in trees, in the parallel schedule, by drafters that do not sample, and with
        ``gamma`` auto, where measured times would decide which random numbers a token gets.
        """
        if self.generate.temperature == 0 or self.drafter is None or not self.drafter.draws:
            return False
        return self.draft.topology == "chain" and self.draft.gamma != "auto" and not self.concurrent

    @model_validator(mode="after")
    def _add_listed_draft(self) -> Profile:
        """Fill in the draft that ``vidspec models`` lists first for the target, if one is needed and not named."""
        models = self.models
        if not self.draft.has_model or models.target is None or models.draft is not None:
            return self
        return self.model_copy(update={"models": models.model_copy(update={"draft": listed_draft(models.target)})})

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        for key, reason, instead in self._problems():
            text = f"{option(key)}: {reason}; nearest valid choice: {instead}"
            raise PydanticCustomError("combination", "{text}", {"text": text})
        return self

    def _problems(self) -> Iterator[OptionConflict]:
        """Yield conflicts of the sections and their parts; a part's constructor may raise a ProfileError as well."""
        for (key,), others in EXCLUSIVE_KEYS:
            value, *rivals = attrgetter(key, *others)(self)
            if value is not None and any(one is not None for one in rivals):
                reason = f"excludes {' and '.join(map(option, others))}"
                yield OptionConflict(key, reason, f"{option(key, value)} alone")
        yield from self.draft.check(self)
        if self.drafter is not None:
            yield from self.drafter.check(self)
        for section in (self.lossy, self.models, self.schedule, self.prune, self.generate):
            yield from section.check(self)
        yield from self.rule.check(self)
        yield from schedules.get(self.schedule.kind).check(self)
        if self.prune.method != "none":
            yield from build_part(pruners.get(self.prune.method), self.prune).check(self)
        if self.prunes_the_target:
            yield from build_part(lossy.get(self.lossy.method), self.lossy).check(self)
