"""A text that says the same again and again: found from its tokens alone, and ended at the same one by every method."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.replay.simulated import SimulatedWorkers, simulate
from research.replay.virtual import Costs
from tests.decoding.toys import blend, greedy_text, on_tables, random_table, rounds_of
from vidspec.acceptance.rules.random_loose import RandomLoose
from vidspec.decoding.limits import PERIOD, SHORTEST, TIMES, StoppingRules, ends_in_loop
from vidspec.decoding.scheduler import ParallelSettings, Scheduler
from vidspec.decoding.schedules.autoregressive import autoregressive
from vidspec.decoding.schedules.sequential import sequential
from vidspec.draft_length.window import FixedGamma
from vidspec.engine.sampling import Sampling

SENTENCE = list(range(100, 112))


@pytest.mark.parametrize(
    ("text", "looping"),
    [
        pytest.param([1, 2, 3] + SENTENCE * 4, True, id="a sentence four times"),
        pytest.param(SENTENCE * 3 + SENTENCE[:-1], False, id="not quite four times"),
        pytest.param(SENTENCE * 4 + [1], False, id="and then something else"),
        pytest.param([5] * SHORTEST, True, id="one word"),
        pytest.param([5] * (SHORTEST - 1), False, id="very, very, very"),
        pytest.param([token for i in range(9) for token in (*SENTENCE, i)], False, id="a list that differs in a word"),
        pytest.param(list(range(PERIOD)) * TIMES, True, id="the longest"),
        pytest.param(list(range(PERIOD + 1)) * TIMES, False, id="a longer one"),
        pytest.param([], False, id="nothing"),
    ],
)
def test_what_a_loop_is(text, looping):
    assert ends_in_loop(text) is looping and ends_in_loop(tuple(text)) is looping


@given(st.lists(st.integers(0, 2), max_size=70), st.integers(1, 9), st.integers(1, 30))
def test_against_the_definition_written_out(start, period, times):
    text = start + start[:period] * times
    expected = any(
        len(text) >= max(TIMES * p, SHORTEST)
        and all(text[-1 - i] == text[-1 - i - p] for i in range(max(TIMES * p, SHORTEST) - p))
        for p in range(1, PERIOD + 1)
    )
    assert ends_in_loop(text) is expected


def test_how_a_text_ended():
    ended = StoppingRules(99, frozenset({9})).end_reason
    assert ended([1, 2, 9]) == "eos" and ended([1, 2, 3]) == "length"
    assert ended(SENTENCE * 4) == "loop" and ended([*SENTENCE * 4, 9]) == "eos"
    stopped = StoppingRules(3, stopped=lambda token_ids: token_ids[-1] == 5).end_reason
    assert stopped([1, 2, 5]) == "stop" and stopped([1, 2, 3]) == "length"


def looping_table(seed, start, period):
    """Says something, then the same ``period`` tokens for ever."""
    table = random_table(seed, 7)
    return lambda prefix: table((len(prefix) if len(prefix) < start else start + (len(prefix) - start) % period,))


class Tables:
    """Two tables as the texts of simulated workers."""

    def __init__(self, target, draft):
        self.target, self.draft = target, draft

    def choose(self, prefix):
        return int(self.target(tuple(prefix)).argmax())

    def propose(self, prefix):
        return int(self.draft(tuple(prefix)).argmax())


CASES = st.tuples(st.integers(0, 10**6), st.integers(0, 30), st.integers(1, 12))


@pytest.mark.full
@given(CASES, st.floats(0, 1), st.integers(1, 9), st.sampled_from([None, "0 1 2 00 01 10 000"]), st.booleans())
def test_every_schedule_stops_at_the_same_token(case, share, gamma, tree, stop):
    target = looping_table(*case)
    draft = blend(target, random_table(case[0] + 1, 7), share)
    limits = StoppingRules(110, frozenset(), stop_loops=stop)
    text = greedy_text(target, StoppingRules(110))
    first = next((n for n in range(1, len(text)) if ends_in_loop(text[:n])), len(text)) if stop else len(text)
    assert first < len(text) or not stop
    for rounds in (
        rounds_of(autoregressive, on_tables(target, limits)),
        rounds_of(sequential, on_tables(target, limits, draft=draft, gamma=gamma, tree=tree)),
        simulate(
            Scheduler(ParallelSettings(110, stop_loops=stop), FixedGamma(gamma)),
            SimulatedWorkers(Tables(target, draft), Costs(lambda rows: 3.0, lambda: 1.0, 5.0, 2.0)),
        ).rounds,
    ):
        assert [token for one in rounds for token in one.token_ids] == text[:first]
        assert all(len(one.origins) == len(one.token_ids) >= 1 for one in rounds)
        assert all(one.accepted == one.origins.count("draft") <= one.drafted for one in rounds)
        assert all(one.drafted == one.accepted + one.wasted for one in rounds if one.mode)


def test_what_a_lossy_rule_let_pass_behind_the_end_is_not_told():
    rule = RandomLoose(Sampling(), rate=1.0)
    one = on_tables(
        random_table(3, 7), StoppingRules(60, stop_loops=True), draft=looping_table(4, 0, 2), gamma=40, rule=rule
    )
    *_, last = rounds_of(sequential, one)
    assert last.drafted == 40 > len(last.token_ids) == len(last.origins) and last.loosened
    assert last.origins.count("loose") == len(last.loosened)
