"""Which methods exist for each part, by name, found without importing them; no torch here.

A method is one module whose file name is the name it registers: ``vidspec/pruning/uniform.py`` holds
``@pruners.register("uniform")``. Adding the file adds the name; nothing else lists it. Packages of others add methods
through entry points of the group ``vidspec.<part>`` (for example ``vidspec.pruning``), a profile may name files that
hold more (:func:`load_plugin`), and a running process may register more itself.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from vidspec.errors import ProfileError

__all__ = [
    "Registry",
    "drafters",
    "families",
    "load_plugin",
    "lossy",
    "names",
    "nearest",
    "pruners",
    "rules",
    "schedules",
]

T = TypeVar("T")
Obj = TypeVar("Obj")


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
    """

    def __init__(self, part: str, package: str, noun: str, key: str, always: tuple[str, ...] = ()) -> None:
        self.part, self.package, self.noun, self.key, self.always = part, package, noun, key, always
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[Obj], Obj]:
        """Decorator: make a class or function available under ``name``."""

        def add(method: Obj) -> Obj:
            known = self._entries.get(name)
            # Reloading a module registers it again; two different methods under one name are a mistake.
            if known is not None and _identity(known) != _identity(method):
                if _identity(known).startswith(f"{self.package}."):
                    raise ValueError(f"{self.noun} {name!r} is vidspec's own; take another name")
                raise ValueError(f"{self.noun} {name!r} is registered twice: {_identity(known)}, {_identity(method)}")
            self._entries[name] = method  # type: ignore[assignment]
            return method

        return add

    def names(self) -> tuple[str, ...]:
        """All valid names, sorted; imports none of the methods."""
        return tuple(sorted({*self.always, *self._entries, *self._modules(), *self._plugins()}))

    def get(self, name: str) -> T:
        """The method called ``name``, importing its module on first use.

        Raises:
            ProfileError: there is none, with the nearest name and all valid ones.
        """
        if name not in self._entries:
            if name in self._modules():
                importlib.import_module(f"{self.package}.{name}")
            elif name in (plugins := self._plugins()):
                method = plugins[name].load()
                self._entries.setdefault(name, method)
        if name not in self._entries:
            raise self.unknown(name)
        return self._entries[name]

    def unknown(self, name: str) -> ProfileError:
        """The error for a name that does not exist."""
        return ProfileError(f"{self.key}: {self.complaint(name)}")

    def complaint(self, name: str) -> str:
        """What is wrong with ``name``, and what would be right."""
        valid = self.names()
        close = nearest(name, valid)
        meant = f"; did you mean {close}?" if close else ";"
        return f"unknown {self.noun} {name!r}{meant} valid: {', '.join(valid)}"

    def _modules(self) -> set[str]:
        """Modules of the package that register a method under their own name, told by their source alone."""
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


pruners: Registry[Any] = Registry("pruning", "vidspec.pruning", "pruner", "prune.method", ("none",))
drafters: Registry[Any] = Registry("drafting", "vidspec.drafting", "drafter", "draft.kind", ("none",))
rules: Registry[Any] = Registry("acceptance", "vidspec.acceptance", "acceptance rule", "accept.rule")
schedules: Registry[Any] = Registry("schedules", "vidspec.decoding", "schedule", "schedule.kind", ("auto", "plan"))
families: Registry[Any] = Registry("families", "vidspec.models", "model family", "models.family")
lossy: Registry[Any] = Registry("lossy", "vidspec.lossy", "lossy method", "lossy.method", ("none",))

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
            taken = sorted((registry._entries.keys() - known.keys()) & registry._modules())
            if any(_identity(registry._entries[one]).startswith(f"{name}.") for one in taken):
                raise ValueError(f"{registry.noun} {taken[0]!r} is vidspec's own; take another name")
    except Exception as error:
        del sys.modules[name]
        for registry, known in before.items():
            registry._entries = {
                key: method
                for key, method in registry._entries.items()
                if key in known or not _identity(method).startswith(f"{name}.")
            }
        raise ProfileError(f"plugins: {path}: {type(error).__name__}: {error}") from error
