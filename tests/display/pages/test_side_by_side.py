"""Differences of two captions and of two runs."""

import weakref
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.display.pages.clips_of_reports import told
from vidspec.display.pages import side_by_side
from vidspec.display.pages.side_by_side import STATES, compare_runs, differences

TEXTS = st.text("ab .,\n", max_size=30)


@given(TEXTS, TEXTS)
def test_all_of_both_is_shown_and_what_is_not_marked_is_the_same(left, right):
    sides = differences(left, right)
    assert tuple("".join(text for text, _ in side) for side in sides) == (left, right)
    kept = ["".join(text for text, only in side if not only).split() for side in sides]
    assert "".join(kept[0]) == "".join(kept[1])
    if left == right:
        assert not any(only for side in sides for _, only in side)


def test_words_are_marked_whole():
    assert differences("A red circle moves.", "A blue circle moves!") == (
        [("A ", False), ("red ", True), ("circle moves", False), (".", True)],
        [("A ", False), ("blue ", True), ("circle moves", False), ("!", True)],
    )


class Record(dict):
    """A record that can be weakly referenced."""


class Run(Sequence):
    """Records that are made as they are read; ``most`` is the number that was alive at a time."""

    def __init__(self, make, count):
        self.make, self.count, self.most = make, count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        raise AssertionError("read one by one")

    def __iter__(self):
        alive = []
        for number in range(self.count):
            record = Record(self.make(number))
            alive = [one for one in alive if one() is not None] + [weakref.ref(record)]
            self.most = max(self.most, len(alive))
            yield record
            del record


def test_records_of_two_runs_are_not_held(monkeypatch):
    """Only those of the rows, the differing ones first; all are counted."""
    monkeypatch.setattr(side_by_side, "MAX_ROWS", 5)

    def side(changes):
        return lambda number: told(path=f"{number}.mp4", **{"caption": f"It is {number}.", **changes.get(number, {})})

    failed = {"caption": None, "error": {"stage": "generate", "kind": "memory", "message": "no"}}
    left = Run(side({7: {"caption": "Other."}, 30: failed}), 40)
    right = Run(lambda number: side({13: {"demo": True}})(number + 2), 40)
    found = compare_runs(left, right)
    assert list(found.counts.items()) == list(zip(STATES, (36, 1, 1, 2, 2), strict=True)) and found.shared == 38
    assert (found.demo, found.captioned) == (1, 79)
    shown = [(one.one.record["path"], one.state) for one in found.shown]
    assert shown == [
        *((f"{n}.mp4", "first only") for n in (0, 1)),
        ("7.mp4", "differs"),
        ("30.mp4", "failed"),
        ("40.mp4", "second only"),
    ]
    assert [bool(one.left) for one in found.shown] == [True, True, True, True, False]
    assert [bool(one.right) for one in found.shown] == [False, False, True, True, True]
    assert left.most < 9 and right.most < 9


def test_the_last_record_of_a_prompt_counts():
    twice = [told(caption="First."), told(caption="Last.")]
    (pair,) = compare_runs(twice, [told(caption="Last.")]).shown
    assert pair.state == "same words" and pair.left.caption == "Last."


def test_prompts_may_differ_where_asked():
    sides = [{**told(), "job": {"prompt": prompt}} for prompt in ("Who?", "Where?")]
    assert [compare_runs(sides[:1], sides[1:], by_prompt=one).shared for one in (True, False)] == [0, 1]


def test_a_pick_is_remembered_for_both_captions():
    def pair(left, right, **job):
        sides = ([{**told(caption=text), "job": job}] for text in (left, right))
        return compare_runs(*sides).shown[0]

    same = pair("A.", "B.")
    assert same.identity == pair("A.", "B.").identity
    assert len({same.identity, pair("B.", "A.").identity, pair("A.", "C.").identity}) == 3
    assert pair("A.", "B.", start=1.5, end=2.0).label == {"path": told()["path"], "start": 1.5, "end": 2.0}


def test_long_captions_that_loop_are_compared():
    """Twenty thousand words, of which all pairs of places would take minutes."""
    loop, other = "a red disc moves. " * 4000, "a red disc stops. " * 4000
    left, right = side_by_side.differences("First, " + loop, "Then, " + other)
    assert "".join(text for text, _ in left) == "First, " + loop and left[0] == ("First", True)
    assert "".join(text for text, _ in right) == "Then, " + other and any(changed for _, changed in right)
