"""Pictures of a bench: which are drawn, and what is said where they cannot be."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from vidspec.bench.interleaved import Row
from vidspec.errors import UsageError
from vidspec.papers.plots import check, draw
from vidspec.telling.record import Caption

PLAIN = Row("ar", 1, 1, None, None, None, 10.0, (1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
FAST = Row("sd-attention", 1, 1, 3.0, 4.0, 0.1, 20.0, (0.9, 0.8, 1.0), (2.0, 1.5, 2.5), (1.8, 1.2, 2.0))


def records(**counters):
    return {"a.mp4": [Caption("a.mp4", "x", counters=counters)]}


def test_three_pictures(tmp_path):
    drafted = records(drafted=10, accepted_lengths=[4, 2, 2])
    files = draw([PLAIN, FAST], {"ar": records(), "sd-attention": drafted}, tmp_path / "new")
    assert [file.name for file in files] == ["speedup.svg", "m-against-alpha.svg", "accepted.svg"]
    for file in files:
        assert ElementTree.parse(file).getroot().tag.endswith("svg")


def test_what_drafted_nothing_has_only_bars(tmp_path):
    assert [file.name for file in draw([PLAIN], {"ar": records()}, tmp_path)] == ["speedup.svg"]


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'vidspec\[plots\]'"):
        check()
