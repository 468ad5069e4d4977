"""Registries of methods by part and name, which list names without importing the methods. No torch.

A method is one module in its part's folder, whose file name is the name it registers:
``vidspec/pruning/pruners/uniform.py`` holds ``@pruners.register("uniform")``. Adding the file adds the name. Other
packages add methods through entry points of the group ``vidspec.<part>`` (for example ``vidspec.pruning``), a profile
may name files with more methods (:func:`load_plugin`), and a running process may register its own.

A method's class has the attributes of its part's protocol below. Its options are the typed parameters of its
constructor, of which :func:`options_of` makes a model; those of built-in methods that are marked :func:`key` are also
keys of the profile's section. Its ``check`` yields conflicts with a profile (:func:`option_conflicts`). Modules of
built-in methods import no torch, so a profile is checked without it.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
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
    """Conflict between keys of a profile: the key to change, the reason, and the nearest valid choice."""

    key: str
    reason: str
    instead: str


class DrafterFacts(Protocol):
    """Properties of a drafter with its options set.

    Attributes:
        needs: signals of the target's prefill that it reads itself, as :class:`vidspec.pruning.base.Pruner` names them.
        model: the weights it drafts with: a ``draft`` model, the ``target`` itself, a ``head`` that reads the target's
            states, such a ``layer`` in the target's own checkpoint, or None: it needs no pass of any model, and its
            proposals cost next to nothing.
        sees: the part of the video it sees: visual tokens that a pruner ``kept``, ``all`` in a way of its own, cache
            entries of its ``own`` choice, or ``nothing``.
        trees: True if it can draft the trees of ``draft.topology``.
        remote: True if it can run in its own process, alongside the target: it needs only token ids and kept indices,
            and answers for every position.
        draws: True if it samples its tokens when the target samples; otherwise they are its greedy choices, and every
            emitted token takes one draw, as in plain decoding.
        paces: True if it chooses the number of draft tokens by the cost of passes.
        gathers: True if it reads selected entries of the target's own cache.
        contexts: names of the contexts of its draft model, if there are several.
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
    """Properties of a pruner with its options set: ``needs``, the signals that it reads."""

    @property
    def needs(self) -> frozenset[str]: ...


class RuleFacts(Protocol):
    """Properties of an acceptance rule.

    Attributes:
        lossless: True if the text is the target's own.
        draws: True if it can verify sampled tokens; otherwise greedy choices only.
    """

    lossless: ClassVar[bool]
    draws: ClassVar[bool]


class ScheduleFacts(Protocol):
    """Properties of a schedule.

    Attributes:
        drafts: True if it needs a drafter.
        beside: True if target and draft work at the same time, each in its own worker.
    """

    drafts: bool = True
    beside: bool = False


class FamilyFacts(Protocol):
    """Properties of a model family: its name, the ``model_type`` of its checkpoints."""

    family: str


class TargetPrunerFacts(Protocol):
    """Properties of a lossy method: ``shares``, the length of ``lossy.keep``."""

    shares: ClassVar[int]


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice nearest to a mistyped ``word``, or None."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return found[0] if found else None


class Registry(Generic[T]):
    """The methods of one part.

    Args:
        part: the name of the part; also of its entry-point group, ``vidspec.<part>``.
        package: the package whose modules hold the methods.
        noun: the word for one method in error messages.
        key: the profile key that names a method of this part; begins the error message.
        always: names that are valid without a module.
        known: parameters of its methods' constructors that are not options.
        facts: protocol of the attributes that each method must define, unless it has a default.
        separator: between words of names, where names of files have ``_``.
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
        separator: str = "_",
    ) -> None:
        self.separator = separator
        self.part, self.package, self.noun, self.key, self.always = part, package, noun, key, always
        self.known, self.facts = known, facts
        self._entries: dict[str, T] = {}

    def register(self, name: str, **facts: object) -> Callable[[Obj], Obj]:
        """Decorator: register a class, or a function with these ``facts``, under ``name``."""

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
        """Return all valid names, sorted, without importing any method."""
        return tuple(sorted({*self.always, *self._entries, *self.modules(), *self._plugins()}))

    def get(self, name: str) -> T:
        """Return the method called ``name``; its module is imported on first use.

        Raises:
            ProfileError: no such method; the message has the nearest name and all valid ones.
        """
        if name not in self._entries:
            if name in self.modules():
                importlib.import_module(self._module(name))
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
                raise ProfileError(f"{self.key}: the {self.noun} {name} has no attribute {fact}", hint=f"see {where}")
            setattr(method, fact, getattr(facts, fact))
        return method

    def section_keys(self) -> dict[str, tuple[Any, Any]]:
        """Return type and default of each built-in option that is a key of the section; imports all built-in methods.

        Raises:
            TypeError: two methods disagree about a key.
        """
        found: dict[str, tuple[Any, Any]] = {}
        for name in sorted(self.modules()):
            importlib.import_module(self._module(name))  # `get` would look for all modules with each name
            for option, one in _parameters(cast(Callable[..., object], self._entries[name]), self.known).items():
                fields = [about for about in getattr(one[0], "__metadata__", ()) if isinstance(about, FieldInfo)]
                if any(field.json_schema_extra is _KEY for field in fields) and found.setdefault(option, one) != one:
                    raise TypeError(f"{self.noun} {name}: {option} has another type or default elsewhere")
        return found

    def owns(self, name: str) -> bool:
        """Return True if the method is built in."""
        return name in self._entries and _identity(self._entries[name]).startswith(f"{self.package}.")

    def unknown(self, name: str) -> ProfileError:
        """Return the error for an unknown name."""
        return ProfileError(f"{self.key}: {self.complaint(name)}")

    def complaint(self, name: str) -> str:
        """Return the message for an unknown ``name``, with the nearest and all valid ones."""
        valid = self.names()
        close = nearest(name, valid)
        meant = f"; did you mean {close}?" if close else ";"
        return f"unknown {self.noun} {name!r}{meant} valid: {', '.join(valid)}"

    def modules(self) -> set[str]:
        """Return the names of the built-in methods: the modules of the package besides ``base``."""
        spec = importlib.util.find_spec(self.package)
        modules = pkgutil.iter_modules(spec.submodule_search_locations if spec else ())
        return {module.name.replace("_", self.separator) for module in modules} - {"base"}

    def _module(self, name: str) -> str:
        return f"{self.package}.{name.replace(self.separator, '_')}"

    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=f"vidspec.{self.part}")}


def _identity(method: object) -> str:
    return f"{getattr(method, '__module__', '?')}.{getattr(method, '__qualname__', repr(method))}"


class PartOptions(BaseModel):
    """Options of a part; see :func:`options_of`."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def key(about: str, **bounds: Any) -> Any:
    """Mark a built-in option as a key of its section, such as ``prune.layer``.

    Written as ``layer: Annotated[int, key("the layer L", ge=1)] = 20``. Parts that share a key share its type. All
    other options belong to the section's ``options``.
    """
    return Field(description=about, json_schema_extra=_KEY, **bounds)


def options_of(part: Callable[..., object], *given: str) -> type[PartOptions]:
    """Return the options of a part: the parameters of its constructor, with types, bounds and defaults.

    Args:
        part: ``Annotated[int, Field(ge=1)]`` bounds a parameter; one without a type takes any value.
        given: parameters that are not options; decoding passes them.
    """
    return create_model("Options", __base__=PartOptions, **_parameters(part, given))  # type: ignore[call-overload, no-any-return]


def _parameters(part: Callable[..., object], given: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    """Return type and default of each parameter of a constructor, as :func:`pydantic.create_model` takes them."""
    constructor = part.__init__ if isinstance(part, type) else part  # type: ignore[misc]
    options = {name: parameter for name, parameter in inspect.signature(part).parameters.items() if name not in given}
    hints = get_type_hints(
        SimpleNamespace(__annotations__={name: parameter.annotation for name, parameter in options.items()}),
        getattr(constructor, "__globals__", {}),
        include_extras=True,
    )
    return {
        name: (
            Any if parameter.annotation is parameter.empty else hints[name],
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for name, parameter in options.items()
    }


def option_conflicts(part: object, profile: object) -> Iterable[OptionConflict]:
    """Return the conflicts that a part's ``check(profile)`` yields for a profile; most parts have no ``check``."""
    check: Callable[[object], Iterable[OptionConflict]] | None = getattr(part, "check", None)
    return check(profile) if check else ()


def build_part(part: Callable[..., T], section: BaseModel | Mapping[str, object], **known: object) -> T:
    """Construct a part from a section of a profile.

    Args:
        part: the registered class or function.
        section: a section, or its keys and ``options``; a section's default, or None, gives the part's own default.
        known: further arguments, known of the target.
    """
    chosen = section.model_dump(exclude_defaults=True) if isinstance(section, BaseModel) else section
    options = chosen.get("options")
    given = {**chosen, **known, **(options if isinstance(options, Mapping) else {})}
    return part(**{name: given[name] for name in inspect.signature(part).parameters if given.get(name) is not None})


pruners: Registry[Callable[..., PrunerFacts]] = Registry(
    "pruning", "vidspec.pruning.pruners", "pruner", "prune.method", ("none",), ("depth", "family")
)
drafters: Registry[Callable[..., DrafterFacts]] = Registry(
    "drafting", "vidspec.drafting.drafters", "drafter", "draft.kind", ("none",), (), DrafterFacts
)
rules: Registry[type[RuleFacts]] = Registry(
    "acceptance",
    "vidspec.acceptance.rules",
    "acceptance rule",
    "accept.rule",
    (),
    ("sampling", "eos", "protected"),
    RuleFacts,
)
schedules: Registry[ScheduleFacts] = Registry(
    "schedules", "vidspec.decoding.schedules", "schedule", "schedule.kind", (), (), ScheduleFacts
)
families: Registry[Callable[..., FamilyFacts]] = Registry(
    "families", "vidspec.models.families", "model family", "models.family"
)
lossy: Registry[type[TargetPrunerFacts]] = Registry(
    "lossy", "vidspec.pruning.target.methods", "lossy method", "lossy.method", ("none",), (), TargetPrunerFacts
)

_PARTS = {registry.part: registry for registry in (pruners, drafters, rules, schedules, families, lossy)}


def names(part: str) -> tuple[str, ...]:
    """Return the valid names of ``pruning``, ``drafting``, ``acceptance``, ``schedules``, ``families`` or ``lossy``."""
    return _PARTS[part].names()


def load_plugin(file: str | os.PathLike[str]) -> None:
    """Run a Python file that registers methods, once per process.

    Args:
        file: not part of any package; its methods have the names it registers.

    Raises:
        ProfileError: the file cannot be read, fails, or registers the name of a built-in method.
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
