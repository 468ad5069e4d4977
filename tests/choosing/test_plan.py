"""Ways to decode, ranked from measured times and acceptance."""

from dataclasses import replace

import pytest

from vidspec.choosing.plan import (
    FEWER,
    GAIN,
    PLAIN,
    WORTH,
    Beside,
    Conditions,
    Drafting,
    Replay,
    decide,
    decide_folder,
    favoured,
    folder,
    ways,
)
from vidspec.draft_length import speed

WIDE = (8, 2.0)


def passes(rows):
    return 20.0 + 0.2 * (rows - 1)


def drafting(name="model", right=90, tq=1.0, read=10.0, second=5, **more):
    return Drafting(name, {"draft.kind": "model"}, 0.0, 100, (right, second, 1, 1), tq, read, WIDE, **more)


def conditions(**more):
    given = {"first": 100.0, "verify": passes, "overhead": 0.5, "tokens": 128}
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
    """Rows beyond the sixth are as good as forbidden: of six rows the best five nodes are proposed."""

    def six(rows):
        return passes(rows) if rows <= 6 else 1e6

    found = find(ways([drafting(right=60, second=20)], conditions(verify=six)), "sequential", "adaptive")
    first, second = (60 + 1.4) / 102, 20 / 102
    # The chain of four, and the second choice at its beginning.
    assert found.tokens_per_pass == pytest.approx(1 + sum(first**n for n in range(1, 5)) + second)
    assert found.gamma == 4
    assert found.decode == pytest.approx(found.tokens_per_pass * passes(1) / (4 * 1.0 + passes(6) + 0.5))


def test_a_level_of_several_rows_costs_what_they_cost():
    """The second choice is as good as the first, and rows of the target are nearly free."""
    even = conditions(verify=lambda rows: 20.0 + 0.01 * rows)
    cheap = replace(drafting(right=50, second=48), tq_wide=(8, 1.0))
    dear = replace(cheap, tq_wide=(8, 15.0))
    cheap, dear = (find(ways([one], even), "sequential", "adaptive") for one in (cheap, dear))
    chain = find(ways([drafting(right=50)], even), "sequential")
    assert cheap.decode > dear.decode > 0 and cheap.decode > 1.2 * chain.decode
    assert cheap.tokens_per_pass > dear.tokens_per_pass


def test_a_replayed_draft_is_taken_at_its_windows():
    again = Replay(windows=(4, 0, 2), accepted=5, seconds=3.0)
    one = replace(drafting(), tq_wide=None, replay=again)
    found = find(ways([one], conditions()), "sequential")
    rounds = sum(passes(1 + window) for window in again.windows) + 3.0 + 3 * 0.5
    assert found.decode == pytest.approx((5 + 3) * passes(1) / rounds)
    assert found.tokens_per_pass == pytest.approx(8 / 3) and found.gamma == 2
    # Four at once take four times the seconds, and their passes what passes of four take.
    four = find(ways([one], many(), 4), "sequential")
    rounds = sum(loaded(4, 4 * (1 + window)) for window in again.windows) + 4 * (3.0 + 3 * 0.5)
    assert four.decode == pytest.approx((5 + 3) * loaded(4, 4) / rounds)


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


def test_trees_need_a_target_that_verifies_them_and_a_draft_that_grows_them():
    for one, found in [(drafting(), conditions(nodes=0)), (replace(drafting(), tq_wide=None), conditions())]:
        assert all(way.topology == "chain" for way in ways([one], found))


def test_the_fastest_comes_first_and_plain_decoding_is_among_them():
    found = ways([drafting(), drafting("worse", right=50)], conditions())
    assert sum(way.overrides == PLAIN.overrides for way in found) == 1
    gains = [way.end_to_end for way in found]
    assert gains == sorted(gains, reverse=True)
    chosen, why = decide(found)
    assert chosen is found[0] and chosen.label in why and f"{chosen.end_to_end:.2f}x" in why


def test_what_does_not_gain_is_not_chosen():
    hopeless = ways([drafting(right=5, tq=19.0)], conditions())
    chosen, why = decide(hopeless)
    assert chosen.name == PLAIN.name and "would reach" in why
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
    tree = replace(pruned, name="tree", topology="adaptive", alpha=0.0, end_to_end=1.99)
    assert favoured([pruned, tree, half, whole]) is half
    assert favoured([pruned, tree, whole]) is pruned, "another topology is another matter"
    assert decide([pruned, half, whole, PLAIN])[0] is half
    beside = replace(half, name="beside", schedule="parallel", end_to_end=2.01)
    assert decide([beside, pruned, half, PLAIN])[0] is beside, "the favoured way in turns is more than 1% behind it"
    assert decide([beside, replace(half, end_to_end=2.0), PLAIN])[0].name == "half"


def test_settings_make_a_profile():
    from vidspec.config import profiles

    base = profiles.load("auto", env={})
    for way in ways([drafting()], conditions(beside=Beside(passes))):
        made = profiles.override(base, dict(way.overrides))
        assert (made.schedule.kind, made.draft.topology) == (way.schedule, way.topology)
        assert made.draft.gamma == (5 if way.name == PLAIN.name else "auto")


def test_loose_rules_accept_more_only_where_they_were_asked_for():
    strict, loose = (find(ways([drafting(right=60)], conditions(strict=s)), "sequential") for s in (1.0, 0.3))
    assert loose.beta == pytest.approx(1 - 0.3 * (1 - strict.beta))


# Several clips at once


def loaded(clips, rows):
    """Weights are read once, each clip's keys and values, and rows are hardly more."""
    return 18.0 + 1.8 * clips + 0.2 * rows


def many(**more):
    return conditions(verify=lambda rows: loaded(1, rows), verify_many=loaded, **more)


def pruned(**more):
    return drafting(tq_many=lambda clips: 0.9 + 0.1 * clips, **more)


def test_one_clip_is_as_ever():
    alone = ways([drafting()], conditions(beside=Beside(passes)))
    told = ways([pruned()], conditions(beside=Beside(passes), verify_many=loaded, ahead=60.0))
    assert alone == told
    for way in alone:
        plain = 127 * passes(1)
        assert way.batch == 1 and way.tokens_per_s == pytest.approx(way.decode / passes(1))
        assert 1 / way.clips_per_s == pytest.approx((100 + plain) / way.end_to_end)


@pytest.mark.parametrize("batch", [2, 8, 32])
def test_many_clips_share_passes(batch):
    found = ways([pruned()], many(), batch)
    plain = next(way for way in found if way.schedule == "autoregressive")
    assert (plain.decode, plain.end_to_end, plain.batch) == (1, 1, batch)
    assert plain.tokens_per_s == pytest.approx(batch / loaded(batch, batch))
    text = 127 * loaded(batch, batch) / batch
    assert plain.clips_per_s == pytest.approx(1 / (100 + text))
    chain = find(found, "sequential")
    round_ = chain.gamma * (0.9 + 0.1 * batch) + loaded(batch, batch * (chain.gamma + 1)) + batch * 0.5
    assert chain.tokens_per_s == pytest.approx(batch * chain.tokens_per_pass / round_)
    # p + D against p + D / S, the draft's own reading besides.
    assert chain.end_to_end == pytest.approx((100 + text) / (100 + 10 + text / chain.decode))
    assert chain.clips_per_s == pytest.approx(chain.end_to_end * plain.clips_per_s)
    for gamma in range(1, 17):
        seconds = gamma * (0.9 + 0.1 * batch) + loaded(batch, batch * (gamma + 1)) + batch * 0.5
        assert speed.chain_tokens(chain.beta, gamma) / seconds <= chain.tokens_per_pass / round_ * (1 + 1e-9)


def test_windows_shrink_with_the_clips_and_trees_and_workers_follow():
    given = [pruned(right=70, second=20)], many(beside=Beside(lambda rows: 1.5 * loaded(1, rows)))
    one, all_ = ways(*given, 1), ways(*given, 32)
    assert find(all_, "sequential").gamma < find(one, "sequential").gamma
    for schedule, topology in [("sequential", "adaptive"), ("parallel", "chain")]:
        assert find(all_, schedule, topology).decode < find(one, schedule, topology).decode
        assert find(all_, schedule, topology).tokens_per_s > find(one, schedule, topology).tokens_per_s


def test_a_draft_that_sees_everything_stops_paying_and_a_pruned_one_does_not():
    def reads(clips, rows):
        return 10.0 + 2.0 * clips + 0.01 * rows

    found = conditions(verify=lambda rows: reads(1, rows), verify_many=reads, overhead=0.0, first=20.0, nodes=0)
    whole = drafting("whole", tq=2.0, tq_many=lambda clips: 0.5 + 1.5 * clips, right=70, read=2.0)
    tenth = drafting("tenth", tq=0.65, tq_many=lambda clips: 0.5 + 0.15 * clips, right=70, read=1.0)
    gains = {batch: {way.name: way.decode for way in ways([whole, tenth], found, batch)} for batch in (1, 32)}
    assert gains[1]["whole"] > 1.5 and gains[32]["whole"] < 1.05
    assert gains[32]["tenth"] > gains[1]["tenth"] * 0.9 > 1.5


def test_a_folder_takes_way_and_batch_together():
    options = [pruned(), drafting("alone", right=99)]
    found = folder(options, many(ahead=80.0), (1, 4, 16))
    assert {way.batch for way in found} == {1, 4, 16}
    rates = [way.clips_per_s for way in found]
    assert rates == sorted(rates, reverse=True)
    plain = next(way for way in found if (way.batch, way.schedule) == (1, "autoregressive"))
    assert 1 / plain.clips_per_s == pytest.approx(20.0 + 127 * loaded(1, 1)), "files are opened ahead"
    chosen, why = decide_folder(found)
    assert (chosen.batch, chosen.name) == (16, "model"), "a drafter that takes a pass for each clip gains nothing here"
    assert chosen.label in why and "16 clips at once" in why and "one clip at a time" in why and "clips/s" in why


def test_more_clips_at_once_have_to_gain():
    flat = many(first=100_000.0)
    chosen, why = decide_folder(folder([pruned()], flat, (1, 2, 4, 8)))
    assert chosen.batch == 1 and why.startswith("one clip at a time") and "x as many" not in why
    plain, faster = (
        replace(PLAIN, batch=n, clips_per_s=rate, tokens_per_s=9.0) for n, rate in ((1, 1.0), (2, 1.0 + FEWER / 2))
    )
    assert decide_folder([faster, plain])[0] is plain
    much = replace(faster, clips_per_s=1 + 2 * FEWER)
    chosen, why = decide_folder([much, plain])
    assert chosen is much and why.startswith("2 clips at once, plain decoding") and "no draft gains" in why


def test_passes_of_several_clips_have_to_be_known():
    with pytest.raises(ValueError, match="not known"):
        ways([drafting()], conditions(), 2)
