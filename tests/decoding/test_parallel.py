import random
from collections import Counter
from itertools import product
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from research.replay.simulated import Deadlock, SimulatedWorkers, drive, simulate
from research.replay.virtual import Costs, Pattern
from tests.decoding.parallel_toys import EOS, ParallelScenario, ToyText, WatchedWorkers, is_rollback
from tests.tiers import examples, full_but
from vidspec.acceptance.base import Verdict
from vidspec.decoding.protocol import (
    PromptRead,
    Propose,
    Proposed,
    Verify,
    VisibleTokens,
    WorkerFailed,
)
from vidspec.decoding.scheduler import ParallelSettings, Scheduler
from vidspec.draft_length.window import AutoGamma, FixedGamma
from vidspec.errors import GenerationError


@pytest.mark.sample(quick=1, full=9)
@pytest.mark.parametrize("block", full_but([0, 1], range(10)))
def test_ten_thousand_interleavings_give_the_targets_text(block):
    for seed in range(block * 1000, block * 1000 + 1000):
        try:
            ParallelScenario(seed).run()
        except Exception as error:
            raise AssertionError(f"case {seed}: {error!r}") from error


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(min_value=10_000), st.booleans(), st.booleans())
def test_any_interleaving_gives_the_targets_text(seed, sampled, latency):
    ParallelScenario(seed, sampled=sampled, latency=latency).run()


@pytest.mark.parametrize("seed", range(300))
def test_without_latency_a_rejection_wastes_at_most_the_pass_that_runs(seed):
    case = ParallelScenario(seed, latency=False)
    rounds = case.run()
    restarts = sum(is_rollback(message) for _, message in case.workers.submitted)
    # A start-up draft that comes too late gives, besides the pass that runs, the token of its prefill.
    assert sum(one.aborted for one in rounds) <= restarts + 1


def test_cases_reach_every_kind_of_round():
    seen, origins = Counter(), Counter()
    for seed in range(400):
        for one in ParallelScenario(seed).run():
            seen[one.mode] += 1
            origins.update(one.origins)
    assert min(seen[mode] for mode in ("prefill", "alone", "pre", "post")) > 50
    assert min(origins[origin] for origin in ("draft", "correction", "target")) > 50


def scheduler(**options):
    options = {"max_new_tokens": 20, "eos": frozenset({EOS}), **options}
    gamma = options.pop("gamma", 3)
    return Scheduler(ParallelSettings(**options), FixedGamma(gamma))


def test_the_first_messages_of_parallel_prefill():
    assert scheduler(startup=4).start() == [
        Verify(0, 0, ()),
        VisibleTokens(None),
        Propose(0, 4),
    ]
    assert scheduler(overlap=False).start() == [Verify(0, 0, ())]
    assert scheduler(await_kept=True).start() == [Verify(0, 0, ())]


def test_the_draft_starts_when_the_kept_tokens_are_known():
    one = scheduler(await_kept=True, startup=4)
    one.start()
    sends, outcome = one.receive(VisibleTokens((1, 5)))
    assert outcome is None
    assert sends == [
        VisibleTokens((1, 5)),
        Propose(0, 4),
    ]


def test_a_draft_that_prunes_late_reads_everything_and_is_told_once():
    one = scheduler(await_kept=True, late=True)
    whole = VisibleTokens(None)
    assert one.start() == [
        Verify(0, 0, ()),
        whole,
        Propose(0, 20),
    ]
    one.receive(PromptRead())
    one.receive(Proposed(0, 0, 7, 0.0))
    assert one.receive(VisibleTokens((1, 5))) == ([VisibleTokens((1, 5))], None)
    sends, outcome = one.receive(Verdict((), 7))
    assert outcome.accepted == 1 and not [
        send for send in sends if isinstance(send, VisibleTokens) or is_rollback(send)
    ]


def ready(*startup, **options):
    """A scheduler whose draft has proposed ``startup`` before the target was ready."""
    one = scheduler(**options)
    one.start()
    one.receive(PromptRead())
    for position, token in enumerate(startup):
        one.receive(Proposed(0, position, token, 0.1))
    return one


def test_the_targets_first_token_is_the_pre_verify_of_the_first_start_up_token():
    one = ready(7, 8, 9, startup=3)
    sends, outcome = one.receive(Verdict((), 7))
    assert (outcome.token_ids, outcome.origins, outcome.accepted) == ((7,), ("draft",), 1)
    assert sends == [Verify(1, 1, (8, 9)), Propose(0, 6)]


def test_a_wrong_start_up_token_restarts_the_draft():
    one = ready(7, 8, 9, startup=3)
    sends, outcome = one.receive(Verdict((), 4))
    assert (outcome.token_ids, outcome.origins, outcome.wasted) == ((4,), ("correction",), 3)
    assert sends == [
        Verify(1, 1, ()),
        Propose(1, 4, 0, (4,)),
    ]


def test_pre_verify_passes_then_waits_for_the_window_then_post_verify():
    one = ready(7, startup=1)
    one.receive(Verdict((), 7))  # pass 1: nothing pending, the draft proposes positions 1 to 3
    assert one.receive(Proposed(0, 1, 2, 0.1)) == ([], None)
    sends, outcome = one.receive(Verdict.chain(0, 2, round=1, seconds=0.4))
    assert sends == [] and (outcome.mode, outcome.token_ids, outcome.origins) == ("pre", (2,), ("draft",))
    assert one.receive(Proposed(0, 2, 3, 0.1)) == ([], None)
    sends, _ = one.receive(Proposed(0, 3, 4, 0.1))
    assert sends == [Verify(2, 2, (3, 4)), Propose(0, 7)]
    one.receive(Proposed(0, 4, 5, 0.1))
    sends, outcome = one.receive(Verdict.chain(1, 9, round=2, seconds=0.4))  # 3 stands, 4 does not
    assert (outcome.mode, outcome.token_ids, outcome.origins) == ("post", (3, 9), ("draft", "correction"))
    assert (outcome.accepted, outcome.wasted, outcome.drafted) == (1, 2, 3)
    assert sends == [
        Verify(3, 4, ()),
        Propose(1, 7, 3, (9,)),
    ]
    assert one.receive(Proposed(0, 5, 6, 0.1)) == ([], None)  # it had left before the draft heard
    one.receive(Proposed(1, 4, 1, 0.1))
    _, outcome = one.receive(Verdict.chain(0, 1, round=3, seconds=0.4))
    assert (outcome.aborted, outcome.wasted, outcome.accepted) == (1, 1, 1)


def test_a_whole_window_gives_no_bonus_but_the_next_windows_first_token():
    one = ready(7, 8, 9, startup=3)
    one.receive(Verdict((), 7))
    assert one.receive(Verdict.chain(2, 5, round=1, seconds=0.4)) == (
        [],
        None,
    )  # 8 and 9 stand; what comes next is not proposed yet
    _, outcome = one.receive(Proposed(0, 3, 5, 0.1))
    assert outcome.token_ids == (8, 9, 5) and outcome.origins == ("draft",) * 3


def test_the_target_goes_on_alone_until_the_draft_is_ready():
    one = scheduler(overlap=False)
    one.start()
    sends, outcome = one.receive(Verdict((), 7))
    assert outcome.origins == ("target",)
    assert [type(send) for send in sends] == [Verify, VisibleTokens]
    sends, outcome = one.receive(Verdict.chain(0, 8, round=1, seconds=0.4))
    assert (outcome.mode, outcome.origins) == ("alone", ("target",)) and [type(s) for s in sends] == [Verify]
    sends, _ = one.receive(PromptRead())
    assert sends == [Propose(1, 5, 0, (7, 8))]
    one.receive(Proposed(1, 2, 9, 0.1))
    _, outcome = one.receive(Verdict.chain(0, 9, round=2, seconds=0.4))
    assert (outcome.mode, outcome.origins) == ("pre", ("draft",))


def test_start_up_tokens_that_would_come_too_late_are_called_off():
    one = scheduler(startup=4)
    one.start()
    sends, _ = one.receive(Verdict((), 7))
    assert sends == [Propose(0, 0), Verify(1, 1, ())]
    sends, _ = one.receive(Verdict.chain(0, 8, round=1, seconds=0.4))
    assert [type(send) for send in sends] == [Verify], "once is enough"
    assert one.receive(PromptRead())[0] == [
        Propose(1, 5, 0, (7, 8)),
    ]
    assert one.receive(Proposed(0, 0, 7, 0.0)) == ([], None)


@pytest.mark.parametrize("overlap", [False, True])
def test_kept_tokens_that_come_after_the_targets_prefill_still_start_the_draft(overlap):
    one = scheduler(overlap=overlap, await_kept=True)
    one.start()
    sends, _ = one.receive(Verdict((), 7))
    assert [type(send) for send in sends] == [Verify]
    assert one.receive(VisibleTokens((2, 3)))[0] == [VisibleTokens((2, 3))]


def test_without_overlap_kept_tokens_wait_for_the_targets_prefill():
    one = scheduler(overlap=False, await_kept=True)
    one.start()
    assert one.receive(VisibleTokens((2, 3))) == ([], None)
    sends, _ = one.receive(Verdict((), 7))
    assert sends[1:] == [VisibleTokens((2, 3))]


def test_start_up_tokens_fill_the_targets_prefill():
    """HIPPO 5.2: 0.8 s of target prefill, 0.2 s of the draft's, 50 ms a token: about twelve tokens."""
    costs = Costs(lambda rows: 0.4, lambda: 0.05, target_prefill=0.81, draft_prefill=0.2)
    hippo = simulate(Scheduler(ParallelSettings(40), FixedGamma(5)), SimulatedWorkers(Pattern(lambda i: True), costs))
    assert hippo.rounds[1].pending == 12  # and the one that the prefill gave, which the target's first token checked
    window = Scheduler(ParallelSettings(40, startup=5), FixedGamma(5))
    assert simulate(window, SimulatedWorkers(Pattern(lambda i: True), costs)).rounds[1].pending == 4


def test_the_window_follows_the_measured_times():
    """ParallelVLM Table 3: T_p = 420 ms, T_q = 46.6 ms, gamma 9."""
    costs = Costs(lambda rows: 0.420, lambda: 0.0466, target_prefill=1.0)
    workers = SimulatedWorkers(Pattern(lambda i: True), costs)
    one = Scheduler(ParallelSettings(200, startup=2), AutoGamma(workers.measured, start=2))
    rounds = simulate(one, workers).rounds
    assert rounds[1].gamma == 2 and {round_.gamma for round_ in rounds[3:]} == {9}
    assert {round_.pending for round_ in rounds[4:-2]} == {8}


def literal_rounds(agrees, gamma, count):
    """ParallelVLM's Algorithm 1 and PEARL's two modes: what each target pass checks, and how many tokens it gives."""
    rounds, at, pending = [], 0, 0
    while at < count:
        mode = "post" if pending else "pre"
        passed = next((n for n in range(pending) if not agrees(at + n)), pending)
        all_passed = passed == pending and agrees(at + pending)  # the first token of the window drafted meanwhile
        rounds.append((mode, min(passed + 1, count - at)))
        at += passed + 1
        pending = min(gamma - 1, count - at - 1) if all_passed else 0  # the last token is compared with the target's
    return rounds


@pytest.mark.parametrize("seed", range(200))
def test_rounds_are_those_of_the_papers_algorithm(seed):
    """The prefill is the first pre-verify; a draft pass takes a gamma-th of the target's."""
    rng = random.Random(seed)
    beta, gamma, count = rng.choice([0.2, 0.5, 0.8, 0.95]), rng.randint(1, 7), rng.randint(1, 40)
    pattern = Pattern.bernoulli(beta, seed)
    costs = Costs(lambda rows: float(gamma), lambda: 1.0, target_prefill=10.0, draft_prefill=1.0)
    one = Scheduler(ParallelSettings(count, startup=gamma), FixedGamma(gamma))
    (_, first), *others = [
        (each.mode, len(each.token_ids)) for each in simulate(one, SimulatedWorkers(pattern, costs)).rounds
    ]
    expected = literal_rounds(lambda at: pattern.propose(range(at)) == at, gamma, count)
    assert [("pre", first), *others] == expected


def test_the_papers_example_takes_three_passes():
    """ParallelVLM Fig. 8: "The video uses ParallelVLM for speedup", gamma 3, T_p = 3 T_q."""
    target = ["The", "video", "uses", "Parallel", "VLM", "for", "speedup"]

    class Figure:
        def choose(self, prefix):
            return (*target, "end")[min(len(prefix), 7)]

        def propose(self, prefix):
            wrong = {5: "method", 6: "a"}
            at = len(prefix)
            return wrong[at] if at in wrong and prefix[:at] == target[:at] else self.choose(prefix)

    one = Scheduler(ParallelSettings(7, startup=4), FixedGamma(3))
    costs = Costs(lambda rows: 3.0, lambda: 1.0, target_prefill=3.5)
    run = simulate(one, SimulatedWorkers(Figure(), costs))
    assert list(run.tokens) == target and run.decode_s == 9.0
    assert [tuple(round_.token_ids) for round_ in run.rounds[1:]] == [
        ("video", "uses", "Parallel", "VLM"),
        ("for",),
        ("speedup",),
    ]


def test_a_failed_worker_ends_the_text_with_its_traceback():
    class Dying(WatchedWorkers):
        def result(self):
            return WorkerFailed("out of memory", "Traceback ...") if self.now > 3 else super().result()

    workers = Dying(ToyText(1, 1.0, 5), Costs(lambda rows: 1.0, lambda: 0.2))
    with pytest.raises(GenerationError, match="the draft worker failed: out of memory") as raised:
        list(drive(scheduler(max_new_tokens=500), workers))
    assert raised.value.kind == "worker" and "Traceback ..." in str(raised.value.__cause__)


def test_a_silent_draft_is_a_deadlock_the_simulation_sees():
    class Silent(SimulatedWorkers):
        def _propose(self, seconds):
            self.draft.text.append(1)

    with pytest.raises(Deadlock):
        simulate(scheduler(), Silent(ToyText(1, 1.0, 5), Costs(lambda rows: 1.0, lambda: 0.2)))


@pytest.mark.parametrize(
    "answer",
    [
        Proposed(0, 2, 5, 0.1),
        Verdict.chain(0, 5, round=2, seconds=0.1),
        Verdict.chain(3, 5, round=1, seconds=0.1),
        Verdict((), 5),
    ],
)
def test_answers_that_make_no_sense_are_refused(answer):
    one = ready(7, 8, 9, startup=3)
    one.receive(Verdict((), 7))
    with pytest.raises(RuntimeError, match="unexpected answer"):
        one.receive(answer)


def test_nothing_is_answered_after_the_end():
    one = ready(EOS, startup=3)
    sends, outcome = one.receive(Verdict((), EOS))
    assert one.finished and outcome.token_ids == (EOS,) and sends == [Propose(0, 0)]
    assert one.receive(Verdict.chain(9, 9, round=9, seconds=9.0)) == ([], None)


class Sampler:
    """A target of three tokens whose distribution depends on the last one; the draft proposes the likeliest."""

    P: ClassVar = {None: (0.5, 0.3, 0.2), 0: (0.1, 0.6, 0.3), 1: (0.4, 0.4, 0.2), 2: (0.7, 0.2, 0.1)}

    def __init__(self, rng, lenient=0.0):
        self.rng, self.lenient = rng, lenient

    def choose(self, prefix):
        p = self.P[prefix[-1] if prefix else None]
        if self.rng.random() < self.lenient:
            return self.propose(prefix)
        return self.rng.choices(range(3), p)[0]

    def propose(self, prefix):
        p = self.P[prefix[-1] if prefix else None]
        return p.index(max(p))


@pytest.mark.parametrize("lenient, holds", [(0.0, True), (0.08, False)])
def test_sampled_texts_have_the_targets_distribution(lenient, holds):
    from scipy.stats import chisquare

    rng, runs = random.Random(5), 4000
    seen = Counter()
    for _ in range(runs):
        costs = Costs(lambda rows: rng.uniform(1, 3), lambda: rng.uniform(0.1, 2), target_prefill=rng.uniform(0, 4))
        one = Scheduler(ParallelSettings(3, startup=2), FixedGamma(2))
        seen[simulate(one, SimulatedWorkers(Sampler(rng, lenient), costs)).tokens] += 1
    expected = {
        (a, b, c): runs * Sampler.P[None][a] * Sampler.P[a][b] * Sampler.P[b][c]
        for a, b, c in product(range(3), repeat=3)
    }
    observed = [seen[sequence] for sequence in expected]
    assert bool(chisquare(observed, list(expected.values())).pvalue > 1e-4) is holds
