"""``schedule: auto``: the faster of both trials is kept, and the reason names both figures."""

from types import SimpleNamespace

import pytest

from vidspec.choosing import schedule as choosing
from vidspec.profile import profiles
from vidspec.telling.events import Round


class Trial:
    """A run of 33 tokens in so many seconds; the first of each kind is slow, as first runs are."""

    seconds: dict
    begun: list

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, setup, *_):
        assert setup == "shortened to 32"
        first = self.kind not in Trial.begun
        Trial.begun.append(self.kind)
        elapsed = Trial.seconds[self.kind] * (10 if first else 1)
        rounds = [Round((1,), ("target",), 0, 0, 0.0), Round((2,) * 32, ("draft",) * 32, 32, 32, elapsed)]
        return SimpleNamespace(events=lambda: (one for one in rounds))


@pytest.mark.parametrize(
    ("turns", "beside", "kind"), [(0.4, 0.2, "parallel"), (0.2, 0.4, "sequential"), (0.2, 0.2, "sequential")]
)
def test_the_faster_one_is_kept(monkeypatch, turns, beside, kind):
    Trial.seconds, Trial.begun = {"turns": turns, "beside": beside}, []
    monkeypatch.setattr(choosing, "InTurns", Trial("turns"))
    monkeypatch.setattr(choosing, "SideBySide", Trial("beside"))
    setup = SimpleNamespace(shortened=lambda tokens: f"shortened to {tokens}")
    choice = choosing.choose(setup, setup, None, "clip", None)
    assert choice.kind == kind
    assert choice.why.startswith(f"{kind}: {32 / turns:.0f} tokens/s in turns, {32 / beside:.0f} at the same time")
    assert Trial.begun == ["turns", "beside", "turns", "beside"]


def test_both_variants_are_whole_profiles():
    auto = profiles.load("parallelvlm", {"schedule.kind": "auto"}, env={})
    in_turns, side_by_side = choosing.variants(auto)
    assert (in_turns.schedule.kind, in_turns.draft.gamma) == ("sequential", "auto")
    assert in_turns.schedule.prefill == "sequential"
    assert (side_by_side.schedule.kind, side_by_side.draft.gamma) == ("parallel", "auto")
    assert side_by_side.schedule.prefill == "parallel" and in_turns.prune == side_by_side.prune
