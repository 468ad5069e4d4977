"""Places by clips: what differs by less than it varies shares one."""

import pytest

from research.compare import is_different, places


def clips(*rates):
    return {f"{number}.mp4": rate for number, rate in enumerate(rates)}


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ((4.0, 4.1), (2.0, 2.1), True),
        ((4.0, 2.0), (3.9, 2.1), False),  # now the one, now the other
        ((4.0,), (2.0,), False),  # one clip knows no spread
        ((4.0, 8.0, 2.0), (2.0, 4.0, 1.0), True),  # clips differ, the ratio does not
        (tuple(2.0 + 0.2 * (n % 3) for n in range(30)), (2.0,) * 30, True),
        (tuple(2.0 + 0.5 * (n % 3 - 1) for n in range(30)), (2.0,) * 30, False),
    ],
)
def test_a_difference_smaller_than_its_spread_is_none(one, other, apart):
    assert is_different(clips(*one), clips(*other)) is apart
    assert is_different(clips(*other), clips(*one)) is apart


def test_those_that_do_not_differ_from_the_first_share_its_place():
    rates = {
        "plain": clips(1.0, 1.0, 1.0),
        "fast": clips(3.1, 2.9, 3.2),
        "as fast": clips(3.0, 3.0, 3.0),
        "between": clips(2.0, 2.1, 2.0),
        "broken": clips(0.0, 0.0, 0.0),
    }
    assert places(rates) == {"fast": 1, "as fast": 1, "between": 3, "plain": 4, "broken": 4}
    assert places({"alone": clips(1.0, 1.0)}) == {"alone": 1}


def test_one_clip_gives_no_places():
    assert places({"plain": clips(1.0), "fast": clips(3.0)}) == places({}) == {}
