import pytest

from research.world.scoring import Score, parse, score, total, truth
from tests.research.world.scenes import scene, thing

ONE = scene(thing("red", "circle", "large", "right", (0, 1), (2, 1)), background="navy", pattern="striped")
RIGHT = (
    "The video shows one object on a striped navy background. The object is a large red circle at the left. "
    "It moves to the right and ends up at the right. By the end of the video, the red circle is at the right. "
    "In total there is one object, and it is red. The background stays striped and navy the whole time."
)
TWO = scene(
    thing("red", "circle", "large", "still", (0, 0)),
    thing("blue", "star", "small", "vanishes", (2, 2), switch=0.5),
)
RIGHT_TWO = (
    "Against a plain black background, the video shows two objects. The first object is a large red circle at the top "
    "left. It does not move at any time. At the bottom right there is a small blue star. It disappears partway through "
    "the clip. The red circle begins to the left of the blue star. In the last frame, the red circle is at the top "
    "left and the blue star is gone."
)


def test_truth():
    statement = truth(TWO)
    assert statement.general == {"count": 2, "background": "black", "pattern": "plain"}
    assert statement.objects == [
        {
            "colour": "red",
            "shape": "circle",
            "size": "large",
            "start": "top left",
            "motion": "still",
            "end": "top left",
            "side": "left",
        },
        {
            "colour": "blue",
            "shape": "star",
            "size": "small",
            "start": "bottom right",
            "motion": "vanishes",
            "end": "gone",
        },
    ]
    assert len(statement) == 16


def test_right_captions():
    assert score(RIGHT, ONE) == Score(9, 9, 9)
    assert score(RIGHT_TWO, TWO) == Score(16, 16, 16)
    assert parse(RIGHT_TWO) == truth(TWO)


def test_facts_score_as_their_scene_does():
    for text in (RIGHT, RIGHT.replace("navy", "teal"), RIGHT_TWO, ""):
        assert score(text, truth(TWO)) == score(text, TWO) and score(text, truth(ONE)) == score(text, ONE)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("striped navy", "dotted navy", Score(8, 9, 9)),
        ("striped navy", "dotted teal", Score(7, 9, 9)),
        ("one object on", "three objects on", Score(8, 9, 9)),
        ("red circle", "pink circle", Score(8, 9, 9)),
        ("red circle", "pink cross", Score(7, 9, 9)),
        ("large", "small", Score(8, 9, 9)),
        ("circle at the left", "circle at the top left", Score(8, 9, 9)),
        ("moves to the right", "moves to the left", Score(8, 9, 9)),
        ("is at the right", "is gone", Score(8, 9, 9)),
        ("It moves to the right and ends up at the right. ", "", Score(8, 8, 9)),
        ("By the end of the video, the red circle is at the right. ", "", Score(8, 8, 9)),
    ],
)
def test_wrong_captions(old, new, expected):
    assert old in RIGHT
    result = score(RIGHT.replace(old, new), ONE)
    assert result == expected
    assert result.precision == expected.matched / expected.stated
    assert result.recall == expected.matched / 9
    assert result.f1 == pytest.approx(2 / (1 / result.precision + 1 / result.recall))


def test_state_of_an_object_that_was_never_introduced_is_a_wrong_statement():
    text = RIGHT.replace("the red circle is at", "the pink circle is at")
    assert score(text, ONE) == Score(8, 9, 9)


def test_object_too_many_costs_precision():
    assert score(RIGHT_TWO, scene(TWO.things[0])) == Score(2 + 6, 16, 9)


def test_object_too_few_costs_recall():
    text = (
        "The video shows one object on a plain black background. The object is a small blue star at the bottom right. "
        "It is visible at first but vanishes before the end. By the end of the video, the blue star is gone."
    )
    assert score(text, TWO) == Score(2 + 6, 9, 16)


def test_objects_are_matched_whatever_their_order():
    turned = (
        "The video shows two objects on a plain black background. The first object is a small blue star at the bottom "
        "right. It disappears partway through the clip. The second object is a large red circle at the top left. "
        "It stays in the same spot for the whole video."
    )
    assert score(turned, TWO) == Score(3 + 5 + 5, 13, 16)


def test_of_contradicting_statements_the_first_counts():
    text = RIGHT.replace("In total", "In the last frame, the red circle is gone. In total")
    assert score(text, ONE) == Score(9, 9, 9)


@pytest.mark.parametrize("text", ["", "   ", "A dog runs over a field.", "....", "It moves to the right."])
def test_text_without_facts(text):
    result = score(text, ONE)
    assert result == Score(0, 0, 9)
    assert (result.precision, result.recall, result.f1) == (0.0, 0.0, 0.0)


def test_rambling_text_ends_in_bounded_time():
    look = "The object is a large red circle at the left. "
    assert score(look * 500, ONE).stated == 2000


def test_total_pools_counts():
    pooled = total([Score(9, 9, 9), Score(0, 0, 9), Score(4, 8, 16)])
    assert pooled == Score(13, 17, 34)
    assert (pooled.precision, pooled.recall) == (13 / 17, 13 / 34)
    assert total([]) == Score(0, 0, 0) and total([]).f1 == 0.0


def test_two_states_of_objects_never_introduced_are_two_statements():
    said = parse("By the end of the video, the red ring is gone and the blue star is at the left.")
    assert said.objects == [{"end": "gone"}, {"end": "left"}]
