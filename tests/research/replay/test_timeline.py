from research.replay.simulated import SimulatedWorkers, simulate
from research.replay.timeline import timeline
from research.replay.virtual import Costs, Pattern, simulate_sequential
from vidspec.decoding.scheduler import ParallelSettings, Scheduler
from vidspec.display.lanes import LaneGlyphs
from vidspec.draft_length.gamma import FixedGamma

COSTS = Costs(lambda rows: 8.0, lambda: 2.0, target_prefill=8.0)
ASCII = LaneGlyphs.ascii()


def lines(run, **options):
    return [line.plain for line in timeline(run, width=71, glyphs=ASCII, **options)]


def parallel(lengths, tokens=40, gamma=4):
    one = Scheduler(ParallelSettings(tokens, startup=4), FixedGamma(gamma))
    return simulate(one, SimulatedWorkers(Pattern.of_lengths(lengths), COSTS))


def test_a_run_where_all_passes():
    """One column is 1: a draft pass takes two, a target pass eight."""
    target, draft, *_ = lines(parallel([99]), strips=1)
    # Start-up tokens 2 to 4 were pending, and every later pass checks four.
    assert target.startswith("target |4 rows |4 rows |4 rows ")
    assert draft.startswith("draft  #-#-#-#-#-#-") and "x" not in draft


def test_rejections_are_seen():
    target, draft, *rest = lines(parallel([2, 0, 5]), strips=1)
    assert "x-" in draft and "#-" in draft and "|1 row +" in target
    assert rest[-1] == "# accepted  x wasted  . waiting  one column = 1 ms"


def test_the_sequential_lanes_take_turns():
    run = simulate_sequential(Pattern(lambda i: True), COSTS, max_new_tokens=30, gamma=3, eos=frozenset())
    target, draft, *_ = lines(run, strips=1)
    assert draft.startswith("draft  #-#-#-........#-#-#-........")
    assert target.startswith("target ......|4 rows ......|4 rows ")


def test_every_strip_has_the_width_and_the_count_is_kept():
    shown = lines(parallel([3], tokens=400), strips=2)
    lanes = [line for line in shown if line.startswith(("target", "draft"))]
    assert len(lanes) == 4 and {len(line) for line in lanes} == {71}
    assert max(map(len, lines(parallel([3], tokens=6), strips=2))) <= 71


def test_colours_tell_accepted_from_wasted():
    _, draft, *_ = timeline(parallel([2, 0, 5], gamma=3), width=71, strips=1, glyphs=ASCII)
    styles = {draft.plain[span.start]: str(span.style) for span in draft.spans}
    assert (styles["#"], styles["x"], styles["."]) == ("green", "red", "dim")
