"""Parameters that ``make test``, ``make test-all`` and ``make sweep`` run of a test that names their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from tests import tiers


class Item:
    """Stand-in for an item of pytest: its marks."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid, self.marks = nodeid, list(marks)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((one.mark for one in self.marks if one.mark.name == name), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark)


def taken(items: list[Item]) -> tuple[list[str], list[str]]:
    """Names of what is quick, and of what is full."""
    left = tiers.take_samples(cast(list[pytest.Item], items))
    stay = [item for item in items if item not in cast(list[Item], left)]
    full = [item.nodeid for item in stay if item.get_closest_marker("full")]
    return [item.nodeid for item in stay if item.nodeid not in full], full


def ten(*marks: pytest.MarkDecorator) -> list[Item]:
    return [Item(f"a[{place}]", *marks) for place in range(10)]


def test_numbers_of_both(monkeypatch):
    monkeypatch.delenv(tiers.EVERY, raising=False)
    quick, full = taken([Item("b"), *ten(pytest.mark.sample(quick=2, full=5))])
    assert quick == ["b", "a[0]", "a[5]"]
    assert full == ["a[1]", "a[3]", "a[7]"]


def test_of_one_alone(monkeypatch):
    monkeypatch.delenv(tiers.EVERY, raising=False)
    quick, full = taken(ten(pytest.mark.sample(quick=1)))
    assert (quick, len(full)) == (["a[0]"], 9)
    marked = [Item("a[0]", pytest.mark.sample(full=3)), *ten(pytest.mark.sample(full=3), pytest.mark.full)[1:]]
    assert taken(marked) == (["a[0]"], ["a[1]", "a[5]"])
    assert len(taken(ten(pytest.mark.sample(full=3)))[0]) == 10  # what make test runs, make test-all runs


def test_a_sweep_leaves_nothing_out(monkeypatch):
    monkeypatch.setenv(tiers.EVERY, "1")
    quick, full = taken(ten(pytest.mark.sample(quick=2, full=5)))
    assert (len(quick), len(full)) == (2, 8)


def test_the_longest_come_first():
    names = ["tests/a.py::one", f"{tiers.LONG[1]}::one[x::y]", "tests/b.py::one", f"{tiers.LONG[0]}::two"]
    items = [Item(name) for name in names]
    tiers.sort_long_first(cast(list[pytest.Item], items))
    assert [item.nodeid for item in items] == [names[1], names[3], names[0], names[2]]
    assert all((Path(__file__).parents[1] / name).is_file() for name in tiers.LONG)
