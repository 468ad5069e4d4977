"""The sequential schedule and plain decoding under the virtual clock, against which the parallel one is measured."""

import pytest

from research.replay.virtual import Costs, Pattern, simulate_sequential
from tests.decoding.parallel_toys import EOS, ToyText

COSTS = Costs(lambda rows: 10.0 + rows, lambda: 2.0, target_prefill=100.0, draft_prefill=30.0)


def run(text, gamma, tokens=12, eos=frozenset()):
    return simulate_sequential(text, COSTS, max_new_tokens=tokens, gamma=gamma, eos=eos)


@pytest.mark.parametrize("gamma", [0, 1, 3, 8])
@pytest.mark.parametrize("beta", [0.0, 0.7, 1.0])
def test_every_schedule_gives_the_targets_text(gamma, beta):
    for seed in range(150):
        text = ToyText(seed, beta, vocabulary=3, eos_rate=0.1 * (seed % 3))
        assert list(run(text, gamma, eos=frozenset({EOS})).tokens) == text.reference(12)


def test_blocks_and_times_by_hand():
    """Two of three accepted, then a bonus; T_p = 10 + rows."""
    text = Pattern.of_lengths([3, 3])  # position 0 is the prefill's: 1 and 2 agree, 3 does not, 4 to 6 do
    one = run(text, 3, tokens=8)
    assert [(round_.accepted, round_.origins[-1]) for round_ in one.rounds[1:]] == [(2, "correction"), (3, "bonus")]
    assert one.times == (100.0, 100 + 30 + 6 + 14, 150 + 6 + 14)
    assert "".join(block.kind[0] for block in one.blocks) == "ppdddvdddv"
    assert [block.end - block.start for block in one.blocks if block.kind == "verify"] == [14.0, 14.0]
    assert one.draft_forwards == 6 and one.decoded == 7


def test_the_window_shrinks_at_the_end():
    one = run(Pattern(lambda position: True), 5, tokens=9)
    assert [round_.pending for round_ in one.rounds[1:]] == [5, 1]
    assert len(one.tokens) == 9


def test_recorded_lengths_are_what_is_accepted_per_pass():
    one = run(Pattern.of_lengths([2, 5, 0]), 5, tokens=40)
    # The prefill's own token takes the place of the first that agrees.
    assert [round_.accepted for round_ in one.rounds[1:8]] == [1, 5, 0, 2, 5, 0, 2]
