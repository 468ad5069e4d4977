"""Ways to decode, ranked from measured times and acceptance."""

from dataclasses import replace

import pytest

from vidspec.planning import speed
from vidspec.planning.plan import GAIN, PLAIN, WORTH, Beside, Conditions, Drafting, decide, favoured, ways

WIDE = (8, 2.0)


def passes(rows):
    return 20.0 + 0.2 * (rows - 1)


def drafting(name="model", right=90, tq=1.0, read=10.0, second=5, **more):
    return Drafting(name, {"draft.kind": "model"}, 0.0, 100, (right, second, 1, 1), tq, read, WIDE, **more)


def conditions(**more):
    given = {"first": 100.0, "verify": passes, "overhead": 0.5, "tokens": 128, "tree": "0 1 00 01 000"}
    return Conditions(**{**given, **more})


def find(found, schedule, topology="chain"):
    return next(way for way in found if (way.schedule, way.topology) == (schedule, topology))


def test_a_chain_is_predicted_by_the_formula():
    found = find(ways([drafting()], conditions()), "sequential")
    beta = (90 + 2 * 0.7) / 102
    assert found.beta == pytest.approx(beta)
    assert found.tokens_per_pass == pytest.approx(speed.chain_tokens(beta, found.gamma))
    round_ = found.gamma * 1.0 + passes(found.gamma + 1) + 0.5
    assert found.decode == pytest.approx(found.tokens_per_pass * passes(1) / round_)
    plain = 127 * passes(1)
    assert found.end_to_end == pytest.approx((100 + plain) / (100 + 10 + plain / found.decode))


def test_a_tree_counts_its_levels_and_its_ranks():
    found = find(ways([drafting(right=60, second=20)], conditions()), "sequential", "tree")
    first, second = (60 + 1.4) / 102, 20 / 102
    assert found.tokens_per_pass == pytest.approx(1 + first + second + first * first + first * second + first**3)
    assert found.gamma == 3
    # Of the five nodes one has children at the first level and one at the second: three draft passes of one row.
    assert found.decode == pytest.approx(found.tokens_per_pass * passes(1) / (3 * 1.0 + passes(6) + 0.5))


def test_side_by_side_pays_for_its_share_of_the_machine():
    half = Beside(lambda rows: 1.5 * passes(rows), slower_read=1.6)
    alone = find(ways([drafting()], conditions(beside=Beside(passes))), "parallel")
    shared_cores = find(ways([drafting()], conditions(beside=half)), "parallel")
    assert alone.decode > shared_cores.decode > 1
    assert alone.end_to_end > shared_cores.end_to_end
    one_device = find(ways([drafting()], conditions(beside=Beside(passes, shared=True))), "parallel")
    in_turns = find(ways([drafting()], conditions()), "sequential")
    assert one_device.decode < in_turns.decode, "two models on one memory-bound device gain nothing from overlap"


def test_what_needs_the_target_has_no_worker_of_its_own():
    found = ways([drafting(beside=False)], conditions(beside=Beside(passes)))
    assert {way.schedule for way in found} == {"autoregressive", "sequential"}


def test_drawn_tokens_have_no_trees():
    assert all(way.topology == "chain" for way in ways([drafting()], conditions(greedy=False)))


def test_the_fastest_comes_first_and_plain_decoding_is_among_them():
    found = ways([drafting(), drafting("worse", right=50)], conditions())
    assert PLAIN in found
    gains = [way.end_to_end for way in found]
    assert gains == sorted(gains, reverse=True)
    chosen, why = decide(found)
    assert chosen is found[0] and chosen.label in why and f"{chosen.end_to_end:.2f}x" in why


def test_what_does_not_gain_is_not_chosen():
    hopeless = ways([drafting(right=5, tq=19.0)], conditions())
    chosen, why = decide(hopeless)
    assert chosen is PLAIN and "would reach" in why
    assert decide([PLAIN]) == (PLAIN, "plain decoding: nothing here can draft")
    slight = replace(find(ways([drafting()], conditions()), "sequential"), end_to_end=GAIN - 0.001)
    assert decide([slight, PLAIN])[0] is PLAIN
    assert decide([replace(slight, end_to_end=GAIN + 0.001), PLAIN])[0] is not PLAIN


def test_of_equals_the_one_with_one_worker_is_taken():
    found = ways([drafting()], conditions(beside=Beside(passes)))
    beside, turns = find(found, "parallel"), find(found, "sequential")
    better = replace(beside, end_to_end=2.0)
    assert decide([better, replace(turns, end_to_end=1.99), PLAIN])[0].schedule == "sequential"
    assert decide([better, replace(turns, end_to_end=1.9), PLAIN])[0].schedule == "parallel"


def test_hiding_the_video_has_to_be_worth_it():
    pruned = replace(PLAIN, name="pruned", schedule="sequential", alpha=0.9, end_to_end=2.0, decode=2.5, beta=0.9)
    half = replace(pruned, name="half", alpha=0.5, end_to_end=2.0 * (1 - WORTH) + 0.01)
    whole = replace(pruned, name="whole", alpha=0.0, end_to_end=2.0 * (1 - WORTH) - 0.01)
    tree = replace(pruned, name="tree", topology="tree", alpha=0.0, end_to_end=1.99)
    assert favoured([pruned, tree, half, whole]) is half
    assert favoured([pruned, tree, whole]) is pruned, "another topology is another matter"
    assert decide([pruned, half, whole, PLAIN])[0] is half
    beside = replace(half, name="beside", schedule="parallel", end_to_end=2.01)
    assert decide([beside, pruned, half, PLAIN])[0] is beside, "the favoured way in turns is more than 1% behind it"
    assert decide([beside, replace(half, end_to_end=2.0), PLAIN])[0].name == "half"


def test_settings_make_a_profile():
    from vidspec import profiles

    base = profiles.load("auto", env={})
    for way in ways([drafting()], conditions(beside=Beside(passes))):
        made = profiles.override(base, dict(way.overrides))
        assert (made.schedule.kind, made.draft.topology) == (way.schedule, way.topology)
        assert made.draft.gamma == (way.gamma if way.topology == "tree" else 5 if way is PLAIN else "auto")


def test_loose_rules_accept_more_only_where_they_were_asked_for():
    strict, loose = (find(ways([drafting(right=60)], conditions(strict=s)), "sequential") for s in (1.0, 0.3))
    assert loose.beta == pytest.approx(1 - 0.3 * (1 - strict.beta))
