"""``schedule: auto``: the faster of both ways is kept, and the reason names both figures."""

from types import SimpleNamespace

import pytest

from vidspec.choosing import planned
from vidspec.choosing.planned import Planner
from vidspec.config import profiles
from vidspec.events.events import Round
from vidspec.models.prefix_cache import PrefixCache
from vidspec.models.request import Request


@pytest.mark.parametrize(
    ("turns", "beside", "kind"), [(0.4, 0.2, "parallel"), (0.2, 0.4, "sequential"), (0.2, 0.2, "sequential")]
)
def test_the_faster_one_is_kept(monkeypatch, turns, beside, kind):
    """Runs of 33 tokens in so many seconds; the first of each kind is slow, as first runs are."""
    seconds, begun = {"sequential": turns, "parallel": beside}, []

    def run(self, way, request, trace, tokens):
        assert (request.path, request.held) == ("clip", None) and tokens == planned.TOKENS
        elapsed = seconds[way.schedule] * (1 if way.schedule in begun else 10)
        begun.append(way.schedule)
        rounds = [Round((1,), ("target",), 0, 0, 0.0), Round((2,) * 32, ("draft",) * 32, 32, 32, elapsed)]
        return SimpleNamespace(events=lambda: (one for one in rounds))

    monkeypatch.setattr(Planner, "_in", run)
    plan = Planner.__new__(Planner)._raced(Request("clip", held=PrefixCache()))
    assert plan.chosen.schedule == kind
    assert plan.why.startswith(f"{kind}: {32 / turns:.0f} tokens/s in turns, {32 / beside:.0f} at the same time")
    assert begun == ["sequential", "parallel", "sequential", "parallel"]


def test_both_ways_are_whole_profiles():
    auto = profiles.load("parallelvlm", {"schedule.kind": "auto"}, env={})
    in_turns, side_by_side = (profiles.override(auto, way) for way in (planned.IN_TURNS, planned.BESIDE))
    assert planned.beginning(auto) == in_turns
    assert (in_turns.schedule.kind, in_turns.draft.gamma) == ("sequential", "auto")
    assert in_turns.schedule.prefill == "sequential"
    assert (side_by_side.schedule.kind, side_by_side.draft.gamma) == ("parallel", "auto")
    assert side_by_side.schedule.prefill == "parallel" and in_turns.prune == side_by_side.prune
