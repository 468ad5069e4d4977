"""Where methods stand between speed and another figure, on pictures whose units are those of the template."""

from dataclasses import replace

import pytest

from display.pages.clips_of_reports import MEASURED
from vidspec.display.pages.pareto import BOTTOM, LEFT, RIGHT, TOP, planes

AR, FAST, SLOW = MEASURED


def test_a_picture_is_drawn_where_methods_differ():
    (shown,) = planes(MEASURED, "ar")  # plain decoding drafts nothing: no share of what was kept
    assert shown.title == "Speed and what the draft was shown" and "decoding over ar" in shown.meaning
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


@pytest.mark.parametrize("count", [3, 60])
def test_names_hide_neither_each_other_nor_points(count):
    rows = [replace(FAST, name=f"method-{n:02}", kept=n / count, decode=(1 + n % 7 / 50,) * 3) for n in range(count)]
    (plane,) = planes(rows, "ar")
    boxes = []
    for name in (point.name for point in plane.points if point.name):
        left = name.x if name.anchor == "start" else name.x - 6.4 * len(name.text)
        boxes.append((left, name.y - 10, left + 6.4 * len(name.text), name.y + 2))
    assert boxes and (count > 3 or len(boxes) == count)
    for at, (left, above, right, below) in enumerate(boxes):
        assert all(left >= c or right <= a or above >= d or below <= b for a, b, c, d in boxes[:at])
        assert not any(left < point.x < right and above < point.y < below for point in plane.points)
