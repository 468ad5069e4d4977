"""Windows of many clips at once: the best ones by brute force, and where they settle on a virtual machine."""

import itertools
import random
from itertools import pairwise

import pytest

from research.speed import best_window
from tests.draft_length.lockstep import Machine, bandwidth, compute, informed, processor
from tests.tiers import full_but
from vidspec.draft_length.costs import TimeCurve
from vidspec.draft_length.pace import TRIAL, TRIAL_SHARE, WindowController, allot_windows
from vidspec.draft_length.window import DOUBLINGS, REST, chain_tokens


def passes(rows):
    return 10.0 + 0.4 * (rows - 1)


def one_clip(tq, scale=1.0, seed=0):
    """A machine that is known exactly, for a single clip."""
    return Machine(lambda n, rows: scale * passes(rows), lambda n, rows: scale * tq, noise=0.0, spikes=0.0, seed=seed)


# The choice


def rate(betas, gammas, draft, verify):
    seconds = sum(draft[sum(gamma >= g for gamma in gammas)] for g in range(1, max(gammas) + 1))
    return sum(map(chain_tokens, betas, gammas)) / (seconds + verify(len(gammas) + sum(gammas)))


def drawn(kind, rng, clips, highest):
    rows, base, slope = clips * (highest + 1), rng.uniform(0.1, 10), rng.random()
    if kind == "line":
        return TimeCurve([(1, base, 1.0)], slope)
    if kind == "roof":
        return TimeCurve([(1, base, 1.0), (rng.uniform(clips, rows), base, 1.0)], 2 * slope)
    if kind == "step":
        return TimeCurve([(clips, base, 1.0), (clips + 1, 1.3 * base, 1.0)], 0.2 * slope)
    ys = list(itertools.accumulate(sorted(rng.uniform(0, 8) * slope for _ in range(4)), initial=base))
    return TimeCurve([(1 + i * rows / 4, y, 1.0) for i, y in enumerate(ys)], 4 * slope)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("kind", ["line", "step", "roof", "bent"])
def test_no_other_windows_give_many_more_tokens_per_second(kind):
    least, mean = (1, 1) if kind in ("line", "step") else (0.94, 0.997)
    rng = random.Random(kind)
    found = []
    for _ in range(100):
        clips = rng.choice((1, 2, 3))
        highest = 5 if clips == 3 else 8
        betas = [rng.choice((rng.random(), rng.uniform(0.9, 1.0), 0.8)) for _ in range(clips)]
        verify = drawn(kind, rng, clips, highest)
        base, each = rng.uniform(0, 3), rng.uniform(0, 0.5)
        draft = [0.0, *(base + each * n for n in range(1, clips + 1))]
        gammas, reached = allot_windows(betas, draft, verify, highest)
        assert reached == pytest.approx(rate(betas, gammas, draft, verify))
        best = max(rate(betas, one, draft, verify) for one in itertools.product(range(highest + 1), repeat=clips))
        found.append(reached / best)
    assert min(found) >= least - 1e-9 and sum(found) / len(found) >= mean - 1e-9


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("tq", [0.0, 0.5, 2.0, 9.0])
def test_one_clip_gets_the_best_window(beta, tq):
    gammas, reached = allot_windows([beta], [0.0, tq], TimeCurve([(1, 10.0, 1.0)], 0.4))
    gamma, best = best_window(beta, passes, tq)
    assert reached == pytest.approx(best) and gammas == [gamma]


def test_clips_of_other_acceptance_get_other_windows():
    gammas, _ = allot_windows([0.5, 0.9, 0.7, 0.9], [0, 1.0, 1.1, 1.2, 1.3], TimeCurve([(4, 10.0, 1.0)], 0.3))
    assert 0 < gammas[0] < gammas[2] < gammas[1] == gammas[3]


def test_a_draft_that_is_never_right_is_not_worth_a_window():
    assert allot_windows([0.0, 0.0], [0, 0.1, 0.1], TimeCurve([(2, 10.0, 1.0)], 0.1)) == ([0, 0], pytest.approx(0.2))


# While decoding


def settled(machine, betas, rounds=800):
    """Tokens per second over all rounds, the first ones included, and the windows of each round."""
    pace = WindowController()
    windows = [pace.window() for _ in betas]
    seen = machine.decode(pace, windows, betas, rounds)
    return machine.rate(seen, betas), seen


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("clips", full_but([4], [1, 4, 16]))
@pytest.mark.parametrize("beta", [0.6, 0.8])
@pytest.mark.parametrize("machine", [lambda: bandwidth(0.02), lambda: bandwidth(0.45), processor, compute])
def test_it_reaches_the_best_fixed_window(machine, beta, clips):
    found = machine()
    reached, _ = settled(found, [beta] * clips)
    assert reached >= 0.97 * found.best_fixed([beta] * clips)


@pytest.mark.full
@pytest.mark.parametrize("clips", [1, 4, 16])
@pytest.mark.parametrize(
    "machine",
    [
        Machine(lambda n, rows: passes(rows), lambda n, rows: 8 + 0.1 * n),
        Machine(lambda n, rows: rows, lambda n, rows: 0.1 * n),
    ],
)
def test_plain_decoding_is_hardly_ever_faster(machine, clips):
    """A draft that costs what it saves, and a pass whose every row costs the same."""
    reached, seen = settled(machine, [0.5] * clips, 2000)
    assert reached >= 0.97 * machine.rate([[0] * clips], [0.5] * clips)
    assert sum(not any(gammas) for gammas in seen) > 0.9 * len(seen)


@pytest.mark.full
def test_clips_that_are_easier_get_wider_windows():
    betas = [0.5, 0.9] * 4
    machine = processor()
    reached, seen = settled(machine, betas)
    late = seen[len(seen) // 2 :]
    narrow, wide = (sum(sum(gammas[k::2]) for gammas in late) / len(late) / 4 for k in (0, 1))
    assert wide > 2 * narrow > 0
    assert reached > machine.best_fixed(betas)


def test_the_draft_rests_while_many_clips_are_there_and_comes_back_when_they_leave():
    machine = compute()
    pace = WindowController()
    windows = [pace.window() for _ in range(16)]
    betas = [0.8] * 16
    seen = machine.decode(pace, windows, betas, 400)
    assert sum(not any(gammas) for gammas in seen[100:]) > 0.9 * 300
    for window in windows[2:]:
        window.close()
    seen = machine.decode(pace, windows[:2], betas[:2], 400)
    assert min(map(min, seen[2:10])) > 0
    assert machine.rate(seen, betas[:2]) >= 0.95 * machine.best_fixed(betas[:2])
    windows[2:] = [pace.window() for _ in range(14)]
    seen = machine.decode(pace, windows, betas, 400)
    assert machine.rate(seen, betas) >= 0.97 * machine.best_fixed(betas)


def test_windows_follow_the_number_of_clips_at_once():
    """A draft that sees the whole video costs more with each clip."""
    machine = bandwidth(0.45)
    pace = WindowController()
    windows = []
    while len(windows) < 16:  # a batch fills while its first clips are decoded
        windows.append(pace.window())
        machine.decode(pace, windows, [0.4] * len(windows), 6)
    machine.decode(pace, windows, [0.4] * 16, 60)
    assert not any(window.gamma for window in windows)
    for window in windows[1:]:
        window.close()
    assert windows[0].gamma > 0
    windows[1:] = [pace.window() for _ in range(15)]
    assert not any(window.gamma for window in windows)


@pytest.mark.full
def test_clips_that_come_and_go():
    """A folder: a clip that ends makes room for the next, and windows start from what is known of the others."""
    rng = random.Random(0)
    machine = processor()
    pace = WindowController()
    clips = []
    seconds = tokens = best = 0.0
    for at in range(1500):
        if len(clips) < 8 and at % 4 == 0:
            clips.append((pace.window(), rng.uniform(0.6, 0.9), at + rng.randint(20, 60)))
        windows, betas = [one[0] for one in clips], [one[1] for one in clips]
        (gammas,) = machine.decode(pace, windows, betas, 1)
        now = sum(map(chain_tokens, betas, gammas))
        tokens += now
        seconds += now / machine.rate([gammas], betas)
        best += now / machine.best_fixed(betas)
        for one in clips:
            if one[2] == at:
                one[0].close()
        clips = [one for one in clips if one[2] > at]
    assert tokens / seconds >= 0.96 * tokens / best


# One clip


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize(("beta", "tq"), [(0.5, 1.0), (0.8, 1.0), (0.95, 0.5), (0.7, 3.0)])
@pytest.mark.parametrize("told", [False, True])
def test_one_clip_comes_near_the_best_window(beta, tq, told):
    pace = informed(passes, tq, 0.8) if told else WindowController()
    machine = one_clip(tq)
    seen = machine.decode(pace, [pace.window()], [beta], 600)
    assert machine.rate(seen[300:], [beta]) > 0.96 * best_window(beta, passes, tq)[1]


def test_it_follows_a_text_that_becomes_easier():
    pace = informed(passes, 1.0, 0.5)
    window, machine = pace.window(), one_clip(1.0)
    machine.decode(pace, [window], [0.4], 300)
    narrow = window.gamma
    seen = machine.decode(pace, [window], [0.97], 300)
    assert sum(gammas[0] for gammas in seen[200:]) > 100 * (narrow + 4)


def test_a_machine_that_became_slower_changes_nothing():
    """Only ratios count."""
    pace = informed(passes, 1.0, 0.8)
    window = pace.window()
    one_clip(1.0).decode(pace, [window], [0.8], 300)
    slower = one_clip(1.0, scale=3.0)
    seen = slower.decode(pace, [window], [0.8], 300)
    assert slower.rate(seen[50:], [0.8]) > 0.97 * slower.best_fixed([0.8])


def test_a_hopeless_draft_rests_and_is_tried_again():
    pace = informed(passes, 8.0, 0.9)
    machine = one_clip(8.0)
    seen = machine.decode(pace, [pace.window()], [0.1], 1000)
    settled = [gammas[0] for gammas in seen[60:]]
    trials = [at for at, gamma in enumerate(settled) if gamma]
    assert {settled[at] for at in trials} <= set(TRIAL) and len(trials) >= 3
    assert all(b - a > REST for a, b in pairwise(trials))
    # A trial takes two draft passes and two rows more, 16.8 besides a plain pass of 10; a tenth of a token is worth 1.
    assert 1.58 * len(trials) <= 2 * TRIAL_SHARE * len(settled)


def test_a_cheap_trial_comes_every_so_many_rounds():
    pace = WindowController()
    machine = Machine(lambda n, rows: 10.0 + 6.0 * (rows > n), lambda n, rows: 0.01, noise=0.0, spikes=0.0)
    seen = machine.decode(pace, [pace.window()], [0.1], 600)
    late = [at for at, gammas in enumerate(seen) if gammas[0] and at > 100]
    assert late and all(b - a > REST for a, b in pairwise(late))


def test_trials_in_vain_become_rare_up_to_a_bound():
    pace = WindowController()
    machine = Machine(lambda n, rows: 10.0 + 6.0 * (rows > n), lambda n, rows: 0.01, noise=0.0, spikes=0.0)
    seen = machine.decode(pace, [pace.window()], [0.0], 6000)
    trials = [at for at, gammas in enumerate(seen) if gammas[0] and at > 30]
    waits = [b - a for a, b in pairwise(trials)]
    assert waits == sorted(waits) and waits[-1] == waits[-2] == (REST << DOUBLINGS) + 1


def test_the_next_clip_of_a_hopeless_draft_begins_with_a_rest():
    pace, machine = WindowController(), one_clip(8.0)
    first = pace.window()
    machine.decode(pace, [first], [0.0], 40)
    first.close()
    (gammas, *_) = machine.decode(pace, [pace.window()], [0.0], 1)
    assert gammas == [0]


def test_the_first_rounds_of_a_hopeless_draft_are_few():
    pace, machine = WindowController(), one_clip(2.0)
    seen = machine.decode(pace, [pace.window()], [0.0], 100)
    assert machine.rate(seen, [0.0]) > 0.92 * machine.rate([[0]], [0.0])


def test_a_draft_that_rests_computes_no_windows(monkeypatch):
    from vidspec.draft_length import pace as module

    pace, machine = WindowController(), one_clip(8.0)
    window = pace.window()
    machine.decode(pace, [window], [0.0], 120)
    calls = []
    monkeypatch.setattr(module, "allot_windows", lambda *given: calls.append(given) or allot_windows(*given))
    seen = machine.decode(pace, [window], [0.0], 200)
    trials = sum(gammas[0] > 0 for gammas in seen)
    assert trials <= 2 and len(calls) <= 2 * trials


def test_trials_of_many_clips_share_a_round():
    pace = WindowController()
    machine = Machine(lambda n, rows: float(rows), lambda n, rows: 0.05, noise=0.0, spikes=0.0)
    seen = machine.decode(pace, [pace.window() for _ in range(6)], [0.3] * 6, 600)
    tried = [gammas for gammas in seen[60:] if any(gammas)]
    assert tried and all(min(gammas) > 0 for gammas in tried)


def test_a_gain_within_the_slack_moves_nothing():
    for slack, gamma in ((10.0, 8), (0.0, best_window(0.3, passes, 1.0)[0])):
        pace = informed(passes, 1.0, 0.3)
        pace.slack = slack
        window = pace.window(8)
        assert window.chosen != 8, "a new clip changes windows at once"
        window.best = 8
        pace.costs.add("target", 1, 9, passes(9))
        assert window.gamma == gamma


def test_outcomes_count_where_no_pass_is_heard():
    """As while every pass carries a part of some clip's prompt."""
    pace = informed(passes, 1.0, 0.9)
    easy, hard = pace.window(), pace.window()
    for _ in range(40):
        easy.update(easy.gamma, easy.gamma)
        hard.update(hard.gamma, 0)
    assert easy.gamma > 6 and hard.gamma <= 2


def test_windows_are_chosen_once_for_a_pass(monkeypatch):
    from vidspec.draft_length import pace as module

    calls = []
    monkeypatch.setattr(module, "allot_windows", lambda *given: calls.append(given) or allot_windows(*given))
    pace = WindowController()
    windows = [pace.window() for _ in range(8)]
    for at in range(20):
        for window in windows:  # each clip goes on by itself: its outcome, then its next window
            if at:
                window.update(3, 2)
            assert window.gamma >= 0
        pace.costs.add("draft", 8, 8, 1.0)
        pace.costs.add("target", 8, 32, 5.0)
    assert len(calls) == 19


def test_a_new_clip_starts_from_what_is_known_of_the_others():
    pace = WindowController()
    first = pace.window()
    for _ in range(60):
        first.update(5, 5)
    easy = pace.window()
    assert easy.beta > 0.9
    for _ in range(3):
        easy.update(5, 0)
    assert easy.beta < 0.9 < 0.95 < first.beta, "but its own text soon counts more"


def test_a_closed_window_does_not_count():
    pace = WindowController()
    machine = processor()
    window, other = pace.window(), pace.window()
    machine.decode(pace, [window, other], [0.8, 0.8], 20)
    other.close()
    other.close()
    assert machine.decode(pace, [window], [0.8], 50)[-1][0] > 0


def test_a_draft_without_passes_costs_nothing():
    pace = WindowController()
    machine = processor()
    window = pace.window()
    for _ in range(60):
        gamma = window.gamma
        pace.costs.add("target", 1, gamma + 1, machine.verify(1, gamma + 1))
        window.update(gamma, gamma)
    assert window.gamma == pace.highest


def test_a_start_out_of_range_is_refused():
    with pytest.raises(ValueError, match="1 <= start <= highest"):
        WindowController().window(0)
    with pytest.raises(ValueError, match="1 <= start <= highest"):
        WindowController(highest=8).window(9)
