"""The lowest versions that pyproject.toml promises are those that `make test-lowest` installs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: Extras whose lowest versions are installed.
EXTRAS = ("data", "plots", "scenes", "split")
#: Lowest versions that cannot be had as small builds for a CPU; constraints/lowest.txt says why.
HIGHER = {"torch"}


def promised():
    """(name, lower bound) of every direct dependency."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    return {
        (name.replace("_", "-"), bound)
        for name, bound in (re.match(r"([\w-]+)>=([\d.]+)", one).groups() for one in lines)
    }


def pinned():
    lines = (ROOT / "constraints" / "lowest.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def numbers(version):
    return [int(part) for part in version.split(".")]


def test_every_lower_bound_is_tested():
    pins = pinned()
    for name, bound in promised():
        lowest, tested = numbers(bound), numbers(pins[name])
        if name in HIGHER:
            assert tested > lowest
        else:
            assert tested[: len(lowest)] == lowest and not any(tested[len(lowest) :]), f"{name}: {bound} is promised"


def test_nothing_else_is_pinned():
    assert set(pinned()) == {name for name, _ in promised()}
