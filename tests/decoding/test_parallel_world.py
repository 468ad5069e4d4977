"""The parallel schedule of many clips in any order of events: each gets its text, whatever the others do."""

from collections import Counter

import pytest

from tests.decoding.parallel_world import BatchScenario, Span, enter
from tests.tiers import full_but, in_turn


@pytest.mark.sample(full=2)
@pytest.mark.parametrize("block", full_but([], in_turn(range(10), 3)))
def test_any_order_of_events_gives_every_clip_its_text(block, monkeypatch):
    enter(monkeypatch)
    for seed in range(block * 1000, block * 1000 + 1000):
        try:
            BatchScenario(seed, kill=seed % 5 == 0).run()
        except Exception as error:
            raise AssertionError(f"case {seed}: {error!r}") from error


@pytest.mark.full
def test_the_orders_reach_what_matters(monkeypatch):
    """Rounds of every kind, clips that share passes, drafts that die with several clips in flight."""
    enter(monkeypatch)
    seen, shared, again = Counter(), 0, Counter()
    gather = Span.gather

    def pruned(span, start, kept):
        seen["pruned behind tokens" if span.tokens else "pruned"] += 1
        gather(span, start, kept)

    monkeypatch.setattr(Span, "gather", pruned)
    for seed in range(400):
        case = BatchScenario(seed, kill=True)
        clips, lost = case.run()
        again[lost] += 1
        rounds = [one for _, _, sequence in clips.values() for one in sequence.rounds]
        seen.update(one.mode for one in rounds)
        shared += len(rounds) > case.target.passes
    assert min(seen.values()) > 40 and len(seen) == 6, seen
    assert shared > 100
    assert sum(again[lost] for lost in again if lost > 1) > 20
