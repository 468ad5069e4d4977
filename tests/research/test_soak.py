"""The soak command with few requests; how often it asks is its own option."""

import sys

import pytest

from research import soak

pytestmark = [pytest.mark.full, pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: it reads /proc")]


def test_a_server_survives_requests_a_tenth_of_them_hostile(capsys, monkeypatch):
    monkeypatch.setattr(soak, "GROWTH", 1.0)  # so few requests only warm it up
    assert soak.main(["--requests", "130", "--at-once", "8"]) == 0, capsys.readouterr().out
    printed = capsys.readouterr().out
    assert "117 right answers, 13 hostile requests" in printed and "all properties hold" in printed


def test_what_a_server_keeps_is_found():
    idle, warm = soak.Usage(100 << 20, 20, 4), soak.Usage(200 << 20, 20, 4)
    run = [idle, *[warm] * soak.PARTS]
    assert soak.SoakResult(usage=run).failures() == []
    grown = soak.Usage(211 << 20, 21, 5)
    found = soak.SoakResult(usage=[*run[:-1], grown], wrong=["other text"]).failures()
    assert found[0] == "other text" and len(found) == 4
