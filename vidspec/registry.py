"""Registries of parts by name, which list names without importing the parts. No torch.

The ``base`` module of a room holds its registry and the base class of its parts, the contract. A part is one class in a
module of the room's folder, named after the part: ``vidspec/pruning/pruners/uniform.py`` holds
``@pruners.register("uniform")``. Adding the file adds the name. Other packages add parts through entry points of the
group ``vidspec.<part>`` (for example ``vidspec.pruning``), a profile may name files with more parts
(:func:`vidspec.config.schema.load_plugin`), and a running process may register its own.

A part's options are the typed parameters of its constructor, of which :func:`options_of` makes a model; those of
built-in parts that are marked :func:`key` are also keys of the profile's section. Modules of built-in parts import no
torch, except families, so a profile is checked without it.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from types import MappingProxyType, SimpleNamespace
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model
from pydantic.fields import FieldInfo

from vidspec.errors import ProfileError, option

__all__ = ["OptionConflict", "PartOptions", "Registry", "build_part", "key", "nearest", "options_of"]

_KEY: dict[str, JsonValue] = {"key": True}

T = TypeVar("T")
C = TypeVar("C")


class OptionConflict(NamedTuple):
    """Conflict between keys of a profile: the key to change, the reason, and the nearest valid choice."""

    key: str
    reason: str
    instead: str


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice nearest to a mistyped ``word``, or None."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return found[0] if found else None


class Registry(Generic[T]):
    """The classes of one kind of part.

    Args:
        contract: their base class, whose attributes and methods have defaults; None if it cannot be imported without
            torch.
        part: the name of the kind; also of its entry-point group, ``vidspec.<part>``.
        package: the package whose modules hold the built-in parts; a module is named after its part.
        noun: the word for one part in error messages.
        key: the profile key that names a part of this kind; begins the error message.
        always: names that are valid without a module.
        known: parameters of constructors that are not options.
        separator: between words of names, where names of files have ``_``.
        same: names of parts that are another part of the package under a further name, and its own.
    """

    def __init__(
        self,
        contract: type[T] | None,
        part: str,
        package: str,
        noun: str,
        key: str,
        *,
        always: tuple[str, ...] = (),
        known: tuple[str, ...] = (),
        separator: str = "_",
        same: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.contract, self.part, self.package, self.noun, self.key = contract, part, package, noun, key
        self.always, self.known, self.separator, self.same = always, known, separator, same
        self._entries: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[type[C]], type[C]]:
        """Decorator: register a class under ``name``."""

        def add(part: type[C]) -> type[C]:
            known = self._entries.get(name)
            # Reloading a module registers it again; two different parts under one name are a mistake.
            if known is not None and _identity(known) != _identity(part):
                if self.owns(name):
                    raise ValueError(f"{self.noun} {name!r} is vidspec's own; take another name")
                raise ValueError(f"{self.noun} {name!r} is registered twice: {_identity(known)}, {_identity(part)}")
            self._entries[name] = self._derived(part)
            return part

        return add

    def _derived(self, part: type[Any]) -> type[T]:
        """Return the class, derived from the contract if it is not yet: plugins of earlier versions need not be."""
        contract = self.contract
        if contract is None or issubclass(part, contract):
            return part
        where = f"{contract.__module__}.{contract.__name__}"
        warnings.warn(f"{_identity(part)} should derive from {where}", DeprecationWarning, stacklevel=4)
        own = {"__module__": part.__module__, "__qualname__": part.__qualname__, "__doc__": part.__doc__}
        return type(part.__name__, (part, contract), own)

    def names(self) -> tuple[str, ...]:
        """Return all valid names, sorted, without importing any part."""
        return tuple(sorted({*self.always, *self._entries, *self.modules(), *self._plugins()}))

    def __contains__(self, name: str) -> bool:
        """Return True if a name is valid; installed packages are searched only if it is not built in."""
        return name in self.always or name in self._entries or name in self.modules() or name in self.names()

    def get(self, name: str) -> type[T]:
        """Return the class called ``name``; its module is imported on first use.

        Raises:
            ProfileError: there is no such part; the message has the nearest name and all valid ones. Or it lacks
                methods.
        """
        name = self.same.get(name, name)
        if name not in self._entries:
            if name in self.modules():
                importlib.import_module(self._module(name))
            elif name in (plugins := self._plugins()):
                self._entries.setdefault(name, self._derived(plugins[name].load()))
        if name not in self._entries:
            raise self.unknown(name)
        part, contract = self._entries[name], self.contract
        if contract is not None and inspect.isabstract(part):
            missing = ", ".join(sorted(part.__abstractmethods__))  # type: ignore[attr-defined]
            hint = f"see {contract.__module__}.{contract.__name__}"
            raise ProfileError(f"{option(self.key)}: the {self.noun} {name} does not define {missing}", hint=hint)
        return part

    def section_keys(self) -> dict[str, tuple[Any, Any]]:
        """Return type and default of each built-in option that is a key of the section; imports all built-in parts.

        Raises:
            TypeError: two parts disagree about a key.
        """
        found: dict[str, tuple[Any, Any]] = {}
        for name in sorted(self.modules() - {*self.same}):
            importlib.import_module(self._module(name))  # `get` would look for all modules with each name
            for key, one in _parameters(self._entries[name], self.known).items():
                fields = [about for about in getattr(one[0], "__metadata__", ()) if isinstance(about, FieldInfo)]
                if any(field.json_schema_extra is _KEY for field in fields) and found.setdefault(key, one) != one:
                    raise TypeError(f"{self.noun} {name}: {key} has another type or default elsewhere")
        return found

    def refuse_own_names(self, module: str) -> None:
        """Raise an error if a module registered the name of a built-in part, which may not be loaded yet.

        Raises:
            ValueError: it did.
        """
        own = self.modules()
        for name, part in self._entries.items():
            if part.__module__ == module and name in own:
                raise ValueError(f"{self.noun} {name!r} is vidspec's own; take another name")

    def forget(self, module: str) -> None:
        """Drop the parts that a module registered."""
        self._entries = {name: part for name, part in self._entries.items() if part.__module__ != module}

    def owns(self, name: str) -> bool:
        """Return True if the part is built in."""
        return name in self._entries and _identity(self._entries[name]).startswith(f"{self.package}.")

    def unknown(self, name: str) -> ProfileError:
        """Return the error for an unknown name."""
        return ProfileError(f"{option(self.key)}: {self.complaint(name)}")

    def complaint(self, name: str) -> str:
        """Return the message for an unknown ``name``, with the nearest and all valid ones."""
        valid = self.names()
        close = nearest(name, valid)
        meant = f"; did you mean {close}?" if close else ";"
        return f"unknown {self.noun} {name!r}{meant} valid: {', '.join(valid)}"

    def modules(self) -> set[str]:
        """Return the names of the built-in parts: the modules of the package besides ``base``, and further names."""
        spec = importlib.util.find_spec(self.package)
        modules = pkgutil.iter_modules(spec.submodule_search_locations if spec else ())
        return {*self.same, *(module.name.replace("_", self.separator) for module in modules)} - {"base"}

    def _module(self, name: str) -> str:
        return f"{self.package}.{name.replace(self.separator, '_')}"

    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in _entry_points(f"vidspec.{self.part}")}


@cache
def _entry_points(group: str) -> EntryPoints:
    """Entry points of a group, searched once: that reads files of each installed package, for tens of milliseconds."""
    return entry_points(group=group)


def _identity(part: type) -> str:
    return f"{part.__module__}.{part.__qualname__}"


class PartOptions(BaseModel):
    """Options of a part; see :func:`options_of`."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def key(about: str, **bounds: Any) -> Any:
    """Mark a built-in option as a key of its section, such as ``prune.layer``.

    Written as ``layer: Annotated[int, key("the layer L", ge=1)] = 20``. Parts that share a key share its type. All
    other options belong to the section's ``options``.
    """
    return Field(description=about, json_schema_extra=_KEY, **bounds)


@cache
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


def build_part(part: Callable[..., T], section: BaseModel | Mapping[str, object], **known: object) -> T:
    """Construct a part from a section of a profile.

    Args:
        part: the registered class.
        section: a section, or its keys and ``options``; a section's default, or None, gives the part's own default.
        known: further arguments, known of the target.
    """
    chosen = section.model_dump(exclude_defaults=True) if isinstance(section, BaseModel) else section
    options = chosen.get("options")
    given = {**chosen, **known, **(options if isinstance(options, Mapping) else {})}
    return part(**{name: given[name] for name in inspect.signature(part).parameters if given.get(name) is not None})
