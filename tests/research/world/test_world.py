import itertools
import math
import random

import pytest

from research.world.captions import caption
from research.world.scene import ASPECT, BACKGROUNDS, COLOURS, MOTIONS, PATTERNS, PLACES, SIZES, draw_scene
from research.world.scoring import score
from tests.research.world.scenes import PLACES_AT, thing
from vidspec.embedded import prompts
from vidspec.embedded.prompts import SHAPES

SCENES = [draw_scene(random.Random(seed)) for seed in range(500)]
THINGS = [thing for scene in SCENES for thing in scene.things]


def test_the_models_were_told_of_its_colours_and_shapes():
    assert tuple(COLOURS) == prompts.COLOURS and prompts.SHAPES == SHAPES


def test_the_world_is_as_rich_as_promised():
    assert len(COLOURS) >= 8 and len(SHAPES) >= 6 and len(SIZES) >= 2 and len(MOTIONS) >= 8
    assert {one.colour for one in THINGS} == set(COLOURS)
    assert {one.shape for one in THINGS} == set(SHAPES)
    assert {one.size for one in THINGS} == set(SIZES)
    assert {one.motion for one in THINGS} == set(MOTIONS)
    assert {one.place for one in THINGS} == set(PLACES.values())
    assert {scene.background for scene in SCENES} == set(BACKGROUNDS)
    assert {scene.pattern for scene in SCENES} == set(PATTERNS)
    assert {len(scene.things) for scene in SCENES} == {1, 2, 3}


def test_every_background_is_darker_than_every_object():
    assert max(sum(rgb) for rgb in BACKGROUNDS.values()) < min(sum(rgb) for rgb in COLOURS.values())


def test_same_seed_same_scene():
    assert [draw_scene(random.Random(seed)) for seed in range(50)] == SCENES[:50]
    assert len(set(SCENES)) == len(SCENES)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_count_is_honoured(count):
    assert {len(draw_scene(random.Random(seed), count=count).things) for seed in range(30)} == {count}


def test_most_bounds_the_count():
    assert {len(draw_scene(random.Random(seed), most=2).things) for seed in range(30)} == {1, 2}


def test_things_differ_in_colour_start_column_and_end():
    for scene in SCENES:
        for names in zip(*((one.colour, one.start[0], one.end) for one in scene.things), strict=True):
            assert len(set(names)) == len(scene.things)


def test_order_is_the_one_that_can_be_seen():
    for scene in SCENES:
        present = [one.visible(0.0) for one in scene.things]
        assert present == sorted(present, reverse=True)
        for one, two in itertools.pairwise(scene.things):
            assert one.visible(0.0) != two.visible(0.0) or one.at[0] < two.at[0]


def test_motions_end_where_they_say():
    steps = {"right": (1, 0), "left": (-1, 0), "up": (0, -1), "down": (0, 1)}
    for one in THINGS:
        if one.motion == "circles":
            continue
        for t, place in ((0.0, one.start), (1.0, one.end)):
            for where, lane in zip(one.position(t), place, strict=True):
                assert abs(where - PLACES_AT[lane]) < 0.05
        moved = [(end > start) - (end < start) for start, end in zip(one.start, one.end, strict=True)]
        assert tuple(moved) == steps.get(one.motion, (0, 0))


def test_appearing_and_vanishing():
    for one in THINGS:
        expected = {"appears": (False, True), "vanishes": (True, False)}.get(one.motion, (True, True))
        assert (one.visible(0.0), one.visible(1.0)) == expected
        assert (one.end_place is None) == (not expected[1])


def test_circles_turn_around_their_centre_at_one_distance():
    one = thing(motion="circles", at=(0.4, 0.6), turns=-1.5, phase=0.3)
    for t in (0.0, 0.1, 0.5, 1.0):
        x, y = one.position(t)
        assert math.hypot((x - 0.4) * ASPECT, y - 0.6) == pytest.approx(0.15)
    (x0, y0), (x1, y1) = one.position(0.0), one.position(1.0)
    assert (x0 + x1) / 2 == pytest.approx(0.4) and (y0 + y1) / 2 == pytest.approx(0.6)  # half a turn too many


def test_nothing_hides_another_in_the_first_or_last_frame():
    for scene in SCENES:
        for t in (0.0, 1.0):
            for one, two in itertools.combinations([one for one in scene.things if one.visible(t)], 2):
                (ax, ay), (bx, by) = one.position(t), two.position(t)
                assert math.hypot((ax - bx) * ASPECT, ay - by) >= 0.95 * (one.radius + two.radius)


def test_captions_state_every_fact_and_no_other():
    for seed, scene in enumerate(SCENES):
        result = score(caption(scene, random.Random(seed)), scene)
        assert (result.precision, result.recall, result.f1) == (1.0, 1.0, 1.0), scene


def test_captions_are_paraphrased():
    texts = {caption(SCENES[0], random.Random(seed)) for seed in range(50)}
    assert len(texts) > 25
