"""Which methods exist for each part, by name, found without importing them; no torch here.

A method is one module whose file name is the name it registers: ``vidspec/pruning/uniform.py`` holds
``@pruners.register("uniform")``. Adding the file adds the name; nothing else lists it. Packages of others add methods
through entry points of the group ``vidspec.<part>`` (for example ``vidspec.pruning``), a profile may name files that
hold more (:func:`load_plugin`), and a running process may register more itself.

A method says of itself what others must know, on its class: the protocols here. Its options are the typed parameters
of its constructor, of which :func:`options_of` makes a model; those of vidspec's own methods that are marked
:func:`key` are keys of the profile's section too. What a method refuses of a profile, its ``check`` says
(:func:`option_conflicts`). Modules of vidspec's own methods import no torch, so that a profile is checked without it.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model
from pydantic.fields import FieldInfo

from vidspec.deprecation import old_names
from vidspec.errors import ProfileError

__all__ = [
    "DrafterFacts",
    "FamilyFacts",
    "OptionConflict",
    "PartOptions",
    "PrunerFacts",
    "Registry",
    "RuleFacts",
    "ScheduleFacts",
    "TargetPrunerFacts",
    "build_part",
    "drafters",
    "families",
    "key",
    "load_plugin",
    "lossy",
    "names",
    "nearest",
    "option_conflicts",
    "options_of",
    "pruners",
    "rules",
    "schedules",
]

_KEY: dict[str, JsonValue] = {"key": True}

T = TypeVar("T")
Obj = TypeVar("Obj")


class OptionConflict(NamedTuple):
    """Keys that exclude each other: the one to change, why, and what to write instead."""

    key: str
    reason: str
    instead: str


class DrafterFacts(Protocol):
    """What is known of a drafter once it has its options.

    Attributes:
        needs: signals of the target's prefill that it reads itself, as :class:`vidspec.pruning.base.Pruner` names them.
        model: whose weights it drafts with: those of a ``draft`` model, the ``target``'s own, those of a ``head`` that
            reads the target's states, of such a ``layer`` in the target's own checkpoint, or None: it needs no pass of
            any model, and its proposals cost next to nothing.
        sees: of the video: the visual tokens that a pruner ``kept``, ``all`` in a way of its own, entries that it
            chooses by its ``own`` lights, or ``nothing``.
        trees: whether it can draft the trees of ``draft.topology``.
        remote: whether it can work in a process of its own, beside the target: it needs nothing of it but token ids and
            kept indices, and answers for every position.
        draws: whether its tokens are drawn where the target's are; else they are its greedy choices, and every emitted
            token takes one draw, as in plain decoding.
        paces: whether it chooses by what passes cost how many tokens it proposes.
        gathers: whether it reads entries that are chosen from the target's own cache.
        contexts: names of what its draft model is shown, if that is several things at once.
    """

    needs: frozenset[str]
    model: Literal["draft", "target", "head", "layer"] | None
    sees: Literal["kept", "all", "own", "nothing"]
    trees: bool
    remote: bool
    draws: bool
    paces: bool
    gathers: bool
    contexts: tuple[str, ...]


class PrunerFacts(Protocol):
    """What is known of a pruner once it has its options: ``needs``, the signals that it reads."""

    @property
    def needs(self) -> frozenset[str]: ...


class RuleFacts(Protocol):
    """What is known of an acceptance rule.

    Attributes:
        lossless: whether the text is the target's own.
        draws: whether it can judge tokens that are drawn; else greedy choices alone.
    """

    lossless: ClassVar[bool]
    draws: ClassVar[bool]


class ScheduleFacts(Protocol):
    """What is known of a schedule.

    Attributes:
        drafts: whether it needs a draft.
        beside: whether target and draft work at the same time, in workers of their own.
    """

    drafts: bool = True
    beside: bool = False


class FamilyFacts(Protocol):
    """What is known of a model family: its name, the ``model_type`` of its checkpoints."""

    family: str


class TargetPrunerFacts(Protocol):
    """What is known of a lossy method: ``shares``, how many ``lossy.keep`` has to name."""

    shares: ClassVar[int]


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that a mistyped ``word`` most likely meant, or None."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return found[0] if found else None


class Registry(Generic[T]):
    """The methods of one part.

    Args:
        part: the name of the part; also of its entry-point group, ``vidspec.<part>``.
        package: the package whose modules hold the methods.
        noun: what one method is called in an error message.
        key: the profile key that names a method of this part; begins the error message.
        always: names that are valid without a module of their own.
        known: what its methods' constructors may take besides their options.
        facts: what each method must say of itself, save where there is a default.
    """

    def __init__(
        self,
        part: str,
        package: str,
        noun: str,
        key: str,
        always: tuple[str, ...] = (),
        known: tuple[str, ...] = (),
        facts: type | None = None,
    ) -> None:
        self.part, self.package, self.noun, self.key, self.always = part, package, noun, key, always
        self.known, self.facts = known, facts
        self._entries: dict[str, T] = {}

    def register(self, name: str, **facts: object) -> Callable[[Obj], Obj]:
        """Decorator: make a class, or a function with these ``facts``, available under ``name``."""

        def add(method: Obj) -> Obj:
            for fact, value in facts.items():
                setattr(method, fact, value)
            known = self._entries.get(name)
            # Reloading a module registers it again; two different methods under one name are a mistake.
            if known is not None and _identity(known) != _identity(method):
                if self.owns(name):
                    raise ValueError(f"{self.noun} {name!r} is vidspec's own; take another name")
                raise ValueError(f"{self.noun} {name!r} is registered twice: {_identity(known)}, {_identity(method)}")
            self._entries[name] = method  # type: ignore[assignment]
            return method

        return add

    def names(self) -> tuple[str, ...]:
        """All valid names, sorted; imports none of the methods."""
        return tuple(sorted({*self.always, *self._entries, *self.modules(), *self._plugins()}))

    def get(self, name: str) -> T:
        """The method called ``name``, importing its module on first use.

        Raises:
            ProfileError: there is none, with the nearest name and all valid ones.
        """
        if name not in self._entries:
            if name in self.modules():
                importlib.import_module(f"{self.package}.{name}")
            elif name in (plugins := self._plugins()):
                method = plugins[name].load()
                self._entries.setdefault(name, method)
        if name not in self._entries:
            raise self.unknown(name)
        method, facts = self._entries[name], self.facts
        for fact in (*get_type_hints(facts), *vars(facts)) if facts else ():
            if fact.startswith("_") or hasattr(method, fact):
                continue
            if not hasattr(facts, fact):
                where = f"{facts.__module__}.{facts.__name__}" if facts else ""
                raise ProfileError(f"{self.key}: the {self.noun} {name} does not say its {fact}", hint=f"see {where}")
            setattr(method, fact, getattr(facts, fact))
        return method

    def section_keys(self) -> dict[str, tuple[Any, Any]]:
        """Type and default of each option of vidspec's own methods that is a key of the section; imports all of them.

        Raises:
            TypeError: two methods disagree about a key.
        """
        found: dict[str, tuple[Any, Any]] = {}
        for name in sorted(self.modules()):
            importlib.import_module(f"{self.package}.{name}")  # `get` would look for all modules with each name
            for option, one in _parameters(cast(Callable[..., object], self._entries[name]), self.known).items():
                fields = [about for about in getattr(one[0], "__metadata__", ()) if isinstance(about, FieldInfo)]
                if any(field.json_schema_extra is _KEY for field in fields) and found.setdefault(option, one) != one:
                    raise TypeError(f"{self.noun} {name}: {option} has another type or default elsewhere")
        return found

    def owns(self, name: str) -> bool:
        """Whether a method is vidspec's own."""
        return name in self._entries and _identity(self._entries[name]).startswith(f"{self.package}.")

    def unknown(self, name: str) -> ProfileError:
        """The error for a name that does not exist."""
        return ProfileError(f"{self.key}: {self.complaint(name)}")

    def complaint(self, name: str) -> str:
        """What is wrong with ``name``, and what would be right."""
        valid = self.names()
        close = nearest(name, valid)
        meant = f"; did you mean {close}?" if close else ";"
        return f"unknown {self.noun} {name!r}{meant} valid: {', '.join(valid)}"

    def modules(self) -> set[str]:
        """Modules of the package that register a method under their own name, found in their source alone."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.submodule_search_locations is None:
            return set()
        return {
            module.name
            for module in pkgutil.iter_modules(spec.submodule_search_locations)
            if not module.ispkg and _registers_itself(module)
        }

    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=f"vidspec.{self.part}")}


def _identity(method: object) -> str:
    return f"{getattr(method, '__module__', '?')}.{getattr(method, '__qualname__', repr(method))}"


def _registers_itself(module: pkgutil.ModuleInfo) -> bool:
    spec = module.module_finder.find_spec(module.name, None)
    get_source = getattr(spec.loader, "get_source", None) if spec else None
    source = get_source(module.name) if get_source else None
    pattern = rf"""^\s*@?\w*\.?register\(\s*["']{re.escape(module.name)}["']"""
    return source is not None and re.search(pattern, source, re.MULTILINE) is not None


class PartOptions(BaseModel):
    """What a part takes; see :func:`options_of`."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def key(about: str, **bounds: Any) -> Any:
    """Makes an option of vidspec's own a key of its section, such as ``prune.layer``.

    Written as ``layer: Annotated[int, key("the layer L", ge=1)] = 20``. Parts that share a key share its type. All
    other options stand in the section's ``options``.
    """
    return Field(description=about, json_schema_extra=_KEY, **bounds)


def options_of(part: Callable[..., object], *given: str) -> type[PartOptions]:
    """The options of a part: the parameters of its constructor, with their types, bounds and defaults.

    Args:
        part: ``Annotated[int, Field(ge=1)]`` bounds a parameter; one without a type takes any value.
        given: parameters that are no options; the decoding knows them.
    """
    return create_model("Options", __base__=PartOptions, **_parameters(part, given))  # type: ignore[call-overload, no-any-return]


def _parameters(part: Callable[..., object], given: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    """Type and default of each parameter of a constructor, as :func:`pydantic.create_model` takes them."""
    made = part.__init__ if isinstance(part, type) else part  # type: ignore[misc]
    taken = {name: one for name, one in inspect.signature(part).parameters.items() if name not in given}
    hints = get_type_hints(
        SimpleNamespace(__annotations__={name: one.annotation for name, one in taken.items()}),
        getattr(made, "__globals__", {}),
        include_extras=True,
    )
    return {
        name: (Any if one.annotation is one.empty else hints[name], ... if one.default is one.empty else one.default)
        for name, one in taken.items()
    }


def option_conflicts(part: object, profile: object) -> Iterable[OptionConflict]:
    """What a part refuses of a profile that names it: what its ``check(profile)`` yields; most parts have none."""
    check: Callable[[object], Iterable[OptionConflict]] | None = getattr(part, "check", None)
    return check(profile) if check else ()


def build_part(part: Callable[..., T], section: BaseModel | Mapping[str, object], **known: object) -> T:
    """A part with what its constructor takes.

    Args:
        part: what is registered under its name.
        section: of a profile, or keys and ``options`` of one; a default of the section, or None, is the part's own.
        known: what is known of the target besides.
    """
    chosen = section.model_dump(exclude_defaults=True) if isinstance(section, BaseModel) else section
    options = chosen.get("options")
    given = {**chosen, **known, **(options if isinstance(options, Mapping) else {})}
    return part(**{name: given[name] for name in inspect.signature(part).parameters if given.get(name) is not None})


pruners: Registry[Callable[..., PrunerFacts]] = Registry(
    "pruning", "vidspec.pruning", "pruner", "prune.method", ("none",), ("depth", "family")
)
drafters: Registry[Callable[..., DrafterFacts]] = Registry(
    "drafting", "vidspec.drafting", "drafter", "draft.kind", ("none",), (), DrafterFacts
)
rules: Registry[type[RuleFacts]] = Registry(
    "acceptance",
    "vidspec.acceptance",
    "acceptance rule",
    "accept.rule",
    (),
    ("sampling", "eos", "protected"),
    RuleFacts,
)
schedules: Registry[ScheduleFacts] = Registry(
    "schedules", "vidspec.decoding", "schedule", "schedule.kind", (), (), ScheduleFacts
)
families: Registry[Callable[..., FamilyFacts]] = Registry("families", "vidspec.models", "model family", "models.family")
lossy: Registry[type[TargetPrunerFacts]] = Registry(
    "lossy", "vidspec.pruning.target", "lossy method", "lossy.method", ("none",), (), TargetPrunerFacts
)

_PARTS = {registry.part: registry for registry in (pruners, drafters, rules, schedules, families, lossy)}


def names(part: str) -> tuple[str, ...]:
    """The valid names of a part: ``pruning``, ``drafting``, ``acceptance``, ``schedules``, ``families``, ``lossy``."""
    return _PARTS[part].names()


def load_plugin(file: str | os.PathLike[str]) -> None:
    """Run a Python file that registers methods; a second time in one process does nothing.

    Args:
        file: not part of any package; its methods are known by the names it registers.

    Raises:
        ProfileError: it cannot be read, fails, or registers a name that vidspec's own methods have.
    """
    path = Path(file).expanduser().resolve()
    # Two files of one name are two modules.
    name = f"vidspec_plugin_{path.stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ProfileError(f"plugins: {path}: " + ("must end in .py" if path.is_file() else "there is no such file"))
    before = {registry: dict(registry._entries) for registry in _PARTS.values()}
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        for registry, known in before.items():
            taken = sorted((registry._entries.keys() - known.keys()) & registry.modules())
            if any(_identity(registry._entries[one]).startswith(f"{name}.") for one in taken):
                raise ValueError(f"{registry.noun} {taken[0]!r} is vidspec's own; take another name")
    except Exception as error:
        del sys.modules[name]
        for registry, known in before.items():
            for key in registry._entries.keys() - known.keys():
                if _identity(registry._entries[key]).startswith(f"{name}."):
                    del registry._entries[key]
        raise ProfileError(f"plugins: {path}: {type(error).__name__}: {error}") from error


if not TYPE_CHECKING:  # see old_names
    __getattr__ = old_names(
        __name__,
        {
            "Problem": "OptionConflict",
            "Options": "PartOptions",
            "Family": "FamilyFacts",
            "problems": "option_conflicts",
            "configured": "build_part",
        },
    )
