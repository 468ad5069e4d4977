"""Questions about drawn scenes have one right answer each, and it is the scene's."""

import random
from collections import Counter

import pytest

from research.world.captions import caption
from research.world.questions import about_the_caption, draw_dialogue, is_right, questions
from research.world.scene import Scene, Thing, draw_scene
from research.world.scoring import truth
from vidspec.embedded.prompts import PROMPTS, QUESTIONS, is_known

STAYS = Thing("red", "circle", "small", "still", (0, 0), (0, 0), (0.2, 0.2))
MOVES = Thing("blue", "star", "large", "right", (1, 1), (2, 1), (0.5, 0.5))
GOES = Thing("green", "ring", "small", "vanishes", (2, 2), (2, 2), (0.8, 0.8), switch=0.5)
COMES = Thing("pink", "cross", "large", "appears", (2, 0), (2, 0), (0.8, 0.2), switch=0.5)


def answers(*things):
    return {(one.kind, one.text): one.answer for one in questions(Scene(things, "navy", "dotted", 0))}


def test_the_answers_of_a_scene():
    assert answers(STAYS, MOVES, GOES) == {
        ("count", "How many objects are there?"): "There are three objects.",
        ("moves", "Which objects move?"): "The red circle does not move. The blue star moves. The green ring does not "
        "move.",
        ("appears", "What appears or vanishes?"): "The green ring vanishes.",
        ("short", "Say it in one sentence."): "The video shows a small red circle, a large blue star and a small green "
        "ring on a dotted navy background.",
        ("end", "Where does the red circle end?"): "It ends at the top left.",
        ("end", "Where does the blue star end?"): "It ends at the right.",
        ("end", "Where does the green ring end?"): "It is gone at the end.",
    }


def test_answers_of_none_and_of_several():
    one = answers(STAYS)
    assert one["count", QUESTIONS["count"]] == "There is one object."
    assert one["moves", QUESTIONS["moves"]] == "The red circle does not move."
    assert one["appears", QUESTIONS["appears"]] == "Nothing appears or vanishes."
    more = answers(MOVES, GOES, COMES)
    assert more["appears", QUESTIONS["appears"]] == "The pink cross appears. The green ring vanishes."
    assert answers(MOVES, MOVES)["moves", QUESTIONS["moves"]] == "The blue star moves. The blue star moves."


@pytest.mark.parametrize("seed", range(20))
def test_what_a_caption_answers_is_what_it_says(seed):
    rng = random.Random(seed)
    scene = draw_scene(rng)
    first, backdrop = about_the_caption(caption(scene, rng))
    facts = truth(scene)
    assert first.answer == "The {size} {colour} {shape}.".format(**facts.objects[0])
    assert backdrop.answer == "It is {pattern} and {background}.".format(**facts.general)
    assert about_the_caption("Nothing of the kind.") == []


def test_dialogues():
    rng = random.Random(4)
    drawn = [draw_dialogue(draw_scene(rng), rng) for _ in range(800)]
    assert {len(turns) for turns in drawn} == {1, 2, 3, 4, 5, 6, 7}
    begun = [turns for turns in drawn if turns[0][0] in PROMPTS]
    assert 0.6 < len(begun) / len(drawn) < 0.73
    asked = Counter(asked for turns in begun for asked, _ in turns)
    # The question that takes practice is among one to six of up to nine; others are rarer.
    assert asked[QUESTIONS["moves"]] > 1.3 * asked[QUESTIONS["count"]]
    for turns in drawn:
        assert all(is_known(prompt) for prompt, _ in turns) and len({prompt for prompt, _ in turns}) == len(turns)
        assert all(prompt not in PROMPTS for prompt, _ in turns[1:])
        if turns not in begun:
            assert not {QUESTIONS["first"], QUESTIONS["backdrop"]} & {prompt for prompt, _ in turns}


def test_known_and_right():
    assert is_known("Where does the red star end?") and not is_known("Where does the star end?")
    assert not is_known("Where does the {thing} end?") and not is_known("Say it again.")
    asked = questions(Scene((STAYS,), "navy", "plain", 0))[0]
    assert is_right(" There is one\nobject. ", asked) and not is_right("There is one object", asked)
