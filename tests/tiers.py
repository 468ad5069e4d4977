"""What ``make test`` leaves to ``make test-all``: tests and parameters with the mark ``full``, and most examples.

Large products take turns in ``make test-all`` too; ``make sweep`` sets :data:`EVERY` and runs all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

#: Environment variable under which products do not take turns.
EVERY = "VIDSPEC_EVERY"


class Tier:
    """The tests that this session of pytest runs, which ``tests/conftest.py`` sets before any is imported."""

    quick = False


def examples(count: int) -> int:
    """Return the number of random examples of a test: a quarter in ``make test``."""
    return -(-count // 4) if Tier.quick else count


def in_turn(values: Iterable[Any], step: int) -> Sequence[Any]:
    """Return every ``step``-th value, the first among them; all in ``make sweep``."""
    return [*values] if os.environ.get(EVERY) else [*values][::step]


def mark_full(items: Iterable[pytest.Item]) -> None:
    """Mark ``full`` what ``quick(count)`` leaves out of a test's parameters; those it keeps lie evenly among them."""
    tests: dict[str, tuple[int, list[pytest.Item]]] = {}
    for item in items:
        mark = item.get_closest_marker("quick")
        if mark and not item.get_closest_marker("full"):
            tests.setdefault(item.nodeid.partition("[")[0], (mark.args[0], []))[1].append(item)
    for count, usual in tests.values():
        kept = {place * len(usual) // count for place in range(count)}
        for place, item in enumerate(usual):
            if place not in kept:
                item.add_marker(pytest.mark.full)


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
