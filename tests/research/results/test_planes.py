"""Places of methods between speed and another figure, on pictures in the template's units."""

from dataclasses import replace

from research.results.page import BOTTOM, LEFT, RIGHT, TOP, planes, write_page
from tests.research.results.measured import MEASURED

AR, FAST, SLOW = MEASURED


def test_a_picture_is_drawn_where_methods_differ():
    (shown,) = planes(MEASURED, "ar")  # plain decoding drafts nothing: no share of what was kept
    assert shown.title == "Speed and visual tokens" and "decoding speed over ar" in shown.meaning
    assert [point.about for point in shown.points] == ["fast = quick: 2.50x, 10%", "slow: 0.50x, 100%"]
    assert not planes([AR, replace(SLOW, kept=0.1), FAST], "ar")


def test_what_is_beaten_in_both_figures_is_off_the_frontier():
    lossy = [
        replace(AR, name=name, decode=(speed, speed, speed), accepted_by_target=own, kept=None)
        for name, speed, own in (("a", 2.0, 0.9), ("b", 1.5, 0.8), ("c", 3.0, 0.5), ("d", 3.0, 0.5))
    ]
    odd = replace(AR, name="odd", equal=1)  # other tokens than the baseline's, and nobody judged them
    (plane,) = planes([AR, odd, *lossy], "ar")
    assert [point.about.split(":")[0] for point in plane.points] == ["ar", "a", "b", "c", "d"]
    assert [point.best for point in plane.points] == [True, True, False, True, True]
    assert plane.frontier == " ".join(f"{one.x},{one.y}" for one in plane.points if one.best)
    for one in plane.points:
        assert LEFT < one.x < RIGHT and TOP <= one.y < BOTTOM
    assert [label for _, label in plane.across] == ["0.00x", "1.00x", "2.00x", "3.00x"]
    assert [label for _, label in plane.up] == ["50%", "60%", "70%", "80%", "90%", "100%"]


def test_fewer_visual_tokens_at_the_same_speed_are_better():
    rows = [replace(FAST, name=str(kept), kept=kept, also=()) for kept in (0.1, 0.5)]
    (plane,) = planes(rows, "ar")
    assert [point.best for point in plane.points] == [True, False]


def test_the_best_have_their_names_beside_their_points(tmp_path):
    file = tmp_path / "page.html"
    write_page(file, [AR, replace(FAST, name="a<b", also=()), replace(SLOW, kept=0.5)], "", {}, demo=False)
    plane = file.read_text(encoding="utf-8").partition('<svg class="plane"')[2].partition("</svg>")[0]
    assert ">a&lt;b</text>" in plane and ">slow</text>" not in plane and "<title>slow: 0.50x, 50%</title>" in plane
