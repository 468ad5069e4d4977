"""What ``make test`` leaves to ``make test-all``: tests and parameters with the mark ``full``, and most examples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


class Tier:
    """The tests that this session of pytest runs, which ``tests/conftest.py`` sets before any is imported."""

    quick = False


def examples(count: int) -> int:
    """Return the number of random examples of a test: a quarter in ``make test``."""
    return -(-count // 4) if Tier.quick else count


def full_but(usual: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Values for ``parametrize``, of which ``make test`` runs the usual ones alone; these must be among them."""
    usual, values = list(usual), list(values)
    assert all(one in values for one in usual), f"not among {values}: {[one for one in usual if one not in values]}"
    return [
        one if one in usual else pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.full)
        for one in values
    ]
