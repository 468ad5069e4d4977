"""An environment with the packages that vidspec and one of its extras require, linked from this one, and no others."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Distributions with files of each package.
OWNERS = importlib.metadata.packages_distributions()


def distributions(extra: str) -> dict[str, set[str]]:
    """Return the distributions that pip installs for vidspec with an extra, beside vidspec, with their extras."""
    wanted = [*map(Requirement, PROJECT["dependencies"] + PROJECT["optional-dependencies"].get(extra, []))]
    found: dict[str, set[str]] = {}
    while wanted:
        one = wanted.pop()
        name, extras = canonicalize_name(one.name), one.extras or {""}
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        if not extras <= found.setdefault(name, set()):
            found[name] |= extras
            for text in importlib.metadata.requires(name) or ():
                further = Requirement(text)
                if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                    further.marker = None
                    wanted.append(further)
    return found


def link(name: str, site: Path) -> None:
    """Link the packages of a distribution; of a folder that several distributions share, what is its own."""
    distribution = importlib.metadata.distribution(name)
    files = [file.parts for file in distribution.files or () if ".." not in file.parts and file.suffix != ".pth"]
    depths = {parts[0]: 2 if len(OWNERS.get(parts[0], ())) > 1 else 1 for parts in files}
    for parts in {parts[: depths[parts[0]]] for parts in files} - {("__pycache__",)}:
        here = site.joinpath(*parts)
        here.parent.mkdir(exist_ok=True)
        if not here.is_symlink():
            here.symlink_to(str(distribution.locate_file("").joinpath(*parts)))


def make_environment(home: Path, extra: str = "") -> Path:
    """Make the environment in the folder ``home``; return its Python."""
    site = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    python, base = home / "bin" / "python", Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    for folder in (site, python.parent):
        folder.mkdir(parents=True)
    python.symlink_to(base)
    (home / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    for name in distributions(extra):
        link(name, site)
    return python
