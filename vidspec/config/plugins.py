"""The registries of all parts that a profile names, and files that register more parts."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from vidspec.acceptance.base import rules
from vidspec.drafting.base import drafters
from vidspec.errors import ProfileError
from vidspec.lossy import lossy
from vidspec.models.base import families
from vidspec.pruning.base import pruners
from vidspec.registry import Registry
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
