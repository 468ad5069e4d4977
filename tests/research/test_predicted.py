"""Predicted rates with launches: what follows from the assumptions, and where windows settle with them."""

from __future__ import annotations

import pytest

from research import predicted
from research.predicted import Host, Prediction
from research.replay.load import DEVICES, Assumed
from tests.draft_length.lockstep import Machine
from vidspec.draft_length.pace import WindowController

#: About what counting gives for 7B; counting takes seconds.
LAUNCHES = {"stock": 1143, "fused": 600, "replayed": 460}


@pytest.fixture(autouse=True)
def launches(monkeypatch):
    monkeypatch.setattr(
        predicted, "counted", lambda size, kind, entries, *, clips, replayed: Launches(kind, clips, replayed)
    )
    predicted._launches.cache_clear()
    yield
    predicted._launches.cache_clear()


class Launches:
    def __init__(self, kind, clips, replayed):
        assert not (replayed and clips > 1)
        self.launches = LAUNCHES["replayed" if replayed else kind] + 28 * (clips - 1)


def at(clips, visual, pair="7b+3b", host=None, **assumed):
    return Prediction(DEVICES["h200"], pair, clips, visual, Assumed(**assumed), host or Host())


def test_a_pass_is_bound_by_the_device_or_by_launches():
    one = at(1, 2_000)
    busy = one.plain("bytes")
    assert one.plain("stock") == pytest.approx(1143 * 5e-6 + 20e-6)  # 5.7 ms of launches, 4.2 of reading
    assert one.plain("replayed") == pytest.approx(busy + 460e-6 + 20e-6)
    fast = at(1, 2_000, host=Host(0.0, 0.0, 0.0))
    assert [fast.plain(way) for way in ("stock", "fused", "replayed")] == [busy] * 3
    many = at(16, 25_000)
    assert many.plain("stock") == pytest.approx(many.plain("bytes") + (1143 + 15 * 28) * 1e-6 + 20e-6)


@pytest.mark.parametrize("pair", ["7b+0.5b", "7b+3b"])
@pytest.mark.parametrize(("clips", "visual"), [(1, 2_000), (16, 2_000), (16, 25_000)])
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.8])
def test_speculation_is_not_slower_or_is_not_there(pair, clips, visual, beta):
    one = at(clips, visual, pair, beta=beta)
    for kept in (1.0, 0.1):
        gamma, rate = one.window(kept)
        plain = clips / one.plain("replayed")
        assert rate > plain if gamma else rate == pytest.approx(plain)
    assert one.window()[0] == 0 or beta > 0.1


@pytest.mark.parametrize("pair", ["7b+0.5b", "7b+3b"])
@pytest.mark.parametrize("beta", [0.3, 0.8])
def test_windows_settle_there_under_load(pair, beta):
    """``draft.gamma: auto`` with these times, 16 clips of 2,000 visual tokens at once, measured with noise."""
    one = at(16, 2_000, pair, beta=beta)
    machine = Machine(lambda n, rows: one.verify(rows / n), lambda n, rows: one.draft())
    pace, betas = WindowController(), [beta] * 16
    seen = machine.decode(pace, [pace.window() for _ in betas], betas, 600)
    late = seen[len(seen) // 2 :]
    plain = machine.rate([[0] * 16], betas)
    assert machine.rate(late, betas) >= 0.97 * max(plain, machine.best_fixed(betas))
    if one.window()[0] == 0:
        assert sum(not any(gammas) for gammas in late) > 0.9 * len(late)


def test_the_table_has_the_pruned_draft_too():
    lines = predicted.predicted(("h200",), ("7b+3b",), (16,), (2_000,)).splitlines()
    cells = [cell.strip() for cell in lines[2].split("|")[1:-1]]
    one = at(16, 2_000)
    assert cells[:4] == ["H200", "7b+3b", "16", "2,000"] and len(cells) == 15
    assert cells[7] == f"{16 / one.plain('replayed'):.0f}" and cells[10] == str(one.window(0.1)[0])
    assert float(cells[13]) == pytest.approx(one.clips_per_s(16 / one.plain("replayed")), abs=0.01)
