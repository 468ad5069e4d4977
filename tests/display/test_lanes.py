import io

import pytest
from rich.console import Console

from vidspec.display.lanes import ROUNDS, draw_lanes
from vidspec.display.panel import PanelScreen, PanelState, render_clip
from vidspec.events.events import Prefilled, Round


def passed(elapsed, verify_s=0.5, draft_s=0.75, drafted=3, accepted=3, aborted=0, gamma=3):
    """A round of the parallel schedule."""
    last = "draft" if accepted == drafted else "correction"
    return Round(
        (1,) * (accepted + 1), ("draft",) * accepted + (last,), drafted, accepted, elapsed, draft_s, verify_s,
        mode="post", gamma=gamma, wasted=drafted - accepted, aborted=aborted,
    )  # fmt: skip


FIRST = Round((1,), ("target",), 0, 0, 0.0, mode="prefill", gamma=3)


def plain(lines):
    return [line.plain for line in lines]


def test_lanes_of_two_rounds():
    """Each lasts a second, eight columns: the target works half of it, the draft three quarters."""
    rounds = [FIRST, passed(1.0), passed(2.0, drafted=3, accepted=1)]
    target, draft, _ = draw_lanes(rounds, 7 + 16)
    assert target.plain == "target " + "├───····" * 2
    assert draft.plain == "draft  " + "■■■■■■··" + "■■□□□□··"
    assert [str(span.style) for span in target.spans] == ["green", "dim", "red", "dim"]
    assert plain(draw_lanes(rounds, 7 + 16, ascii_only=True))[1] == "draft  ######..##xxxx.."


def test_work_beyond_the_round_fills_it_and_no_work_is_waiting():
    rounds = [FIRST, passed(1.0, verify_s=7.0, draft_s=9.0), passed(2.0, draft_s=0.0, drafted=0, accepted=0)]
    target, draft, _ = plain(draw_lanes(rounds, 7 + 8))
    assert (target, draft) == ("target ├───├─··", "draft  ■■■■····")


def test_only_the_last_rounds_are_shown():
    rounds = [FIRST, *(passed(float(i)) for i in range(1, 100))]
    target, draft, how = plain(draw_lanes(rounds, 7 + 5 * ROUNDS))
    assert target.count("├") == ROUNDS and len(target) == len(draft) == 7 + 5 * ROUNDS
    assert f"last {ROUNDS} s" in how


@pytest.mark.parametrize("rounds", [[], [FIRST], [FIRST, passed(0.0)]])
def test_nothing_before_time_has_passed(rounds):
    assert draw_lanes(rounds, 80) == []


@pytest.mark.parametrize("width", [1, 7, 8, 9, 40, 200])
def test_lanes_fill_the_width(width):
    rounds = [FIRST, *(passed(0.013 * i * i, 0.01, 0.02, 4, i % 4) for i in range(1, 9))]
    drawn = draw_lanes(rounds, width)
    assert [len(line.plain) for line in drawn[:2]] == ([width] * 2 if width > 7 else [])


def panel(state, width=80, height=None):
    out = io.StringIO()
    Console(file=out, width=width).print(render_clip(state, PanelScreen(width=width, height=height)))
    return out.getvalue()


def state(*rounds, **read):
    state = PanelState()
    state.apply(Prefilled(20, 8, (0, 4, 5), (1, 2), (4, 4), 0.5, **read))
    for one in rounds:
        state.apply(one)
    return state


def test_panel_shows_both_lanes_window_and_waste():
    text = panel(state(FIRST, passed(1.0), passed(2.0, drafted=5, accepted=1, aborted=2, gamma=4)))
    for part in ("target ├", "draft  ■", "window 4", "wasted 4 (2 aborted)", "· waiting", "last 2.00 s"):
        assert part in text
    assert "aborted" not in panel(state(FIRST, passed(1.0, drafted=5, accepted=1)))


def test_panel_of_taking_turns_has_no_lanes():
    in_turns = Round((1, 2), ("draft", "correction"), 3, 1, 1.0, 0.4, 0.5)
    text = panel(state(Round((1,), ("target",), 0, 0, 0.0), in_turns))
    assert "waiting" not in text and "gamma" not in text and "wasted" not in text


@pytest.mark.parametrize(("height", "shown"), [(13, False), (14, True), (None, True)])
def test_a_small_panel_leaves_the_lanes_out(height, shown):
    assert ("waiting" in panel(state(FIRST, passed(1.0)), height=height)) == shown


@pytest.mark.parametrize("width", [10, 20, 31, 80])
def test_every_line_fits_the_terminal(width):
    text = panel(state(FIRST, passed(1.0), passed(2.0, accepted=1)), width=width)
    assert {len(line) for line in text.splitlines()} == {width}
