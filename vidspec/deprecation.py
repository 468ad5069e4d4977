"""Old names of renamed objects that plugins import; they work for one version, with a warning."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping

__all__ = ["old_names"]


def old_names(module: str, renamed: Mapping[str, str]) -> Callable[[str], object]:
    """Return a module's ``__getattr__`` (PEP 562) that resolves old names to the renamed objects.

    Assign it outside type checking only; with a module ``__getattr__`` a type checker accepts any name.

    Args:
        module: its ``__name__``.
        renamed: old name to new name; with dots, one of another module.
    """

    def resolve(name: str) -> object:
        new = renamed.get(name)
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is deprecated, use {new}", DeprecationWarning, stacklevel=2)
        home, _, last = new.rpartition(".")
        return getattr(importlib.import_module(home or module), last)

    return resolve
