"""Tests that ``make test`` leaves to ``make test-all``: those with the mark ``full``, and most random examples.

Large products take turns in ``make test-all`` too; ``make sweep`` sets :data:`EVERY` and runs all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

#: Environment variable under which products do not take turns.
EVERY = "VIDSPEC_EVERY"

#: Files with the longest tests.
LONG = (
    "tests/engine/test_compiled.py",
    "tests/engine/test_graphs.py",
    "tests/models/test_loading.py",
    "tests/models/test_quick_import.py",
    "tests/research/test_gpu.py",
    "tests/runs/test_end_to_end.py",
    "tests/runs/test_kill.py",
    "tests/runs/test_object_store.py",
    "tests/runs/test_orders.py",
    "tests/runs/test_pool.py",
    "tests/test_readme_commands.py",
)


class Tier:
    """The tests that this session of pytest runs, which ``tests/conftest.py`` sets before any is imported."""

    quick = False


def examples(count: int) -> int:
    """Return the number of random examples of a test: a quarter in ``make test``."""
    return -(-count // 4) if Tier.quick else count


def in_turn(values: Iterable[Any], step: int) -> Sequence[Any]:
    """Return every ``step``-th value, the first among them; all in ``make sweep``."""
    return [*values] if os.environ.get(EVERY) else [*values][::step]


def sort_long_first(items: list[pytest.Item]) -> None:
    """Move the tests of :data:`LONG` to the front: one begun last would keep all other processes waiting."""
    items.sort(key=lambda item: item.nodeid.partition("::")[0] not in LONG)


def take_samples(items: list[pytest.Item]) -> list[pytest.Item]:
    """Mark ``full`` what ``sample(quick=..., full=...)`` leaves out of a test's usual parameters.

    Returns what it leaves to ``make sweep``. Those it keeps lie evenly among all.
    """
    tests: dict[str, tuple[pytest.Mark, list[pytest.Item]]] = {}
    for item in items:
        if mark := item.get_closest_marker("sample"):
            tests.setdefault(item.nodeid.partition("[")[0], (mark, []))[1].append(item)
    left: list[pytest.Item] = []
    for mark, every in tests.values():
        usual = [item for item in every if not item.get_closest_marker("full")]
        rest = _rest(usual, mark.kwargs.get("quick", len(usual)))
        for item in rest:
            item.add_marker(pytest.mark.full)
        if "full" in mark.kwargs and not os.environ.get(EVERY):
            others = [item for item in every if item.get_closest_marker("full")]
            left += _rest(others, max(0, mark.kwargs["full"] - len(every) + len(others)))
    return left


def _rest(items: list[pytest.Item], count: int) -> list[pytest.Item]:
    """Return all but ``count`` of them."""
    kept = {place * len(items) // count for place in range(count)}
    return [item for place, item in enumerate(items) if place not in kept]


def full_but(usual: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Values for ``parametrize``, of which ``make test`` runs the usual ones alone.

    A usual one that is not among them, because they take turns, is added.
    """
    usual, values = list(usual), list(values)
    every = [*values, *(one for one in usual if one not in values)]
    return [
        one if one in usual else pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.full)
        for one in every
    ]
