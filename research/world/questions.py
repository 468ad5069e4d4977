"""Questions about a scene with one right answer by its ground truth, and dialogues made of them.

An answer has one wording, so that :func:`is_right` compares strings.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from research.world.captions import article, caption, counted, draw_prompt, listed
from research.world.scene import Scene, Thing
from research.world.scoring import parse
from vidspec.embedded.prompts import QUESTIONS

#: Questions that take more practice than others.
_HARD = ("moves", "end")
_MOVING = ("right", "left", "up", "down", "circles")


@dataclass(frozen=True)
class Question:
    """A question and its one right answer; ``kind`` is a key of :data:`QUESTIONS`."""

    kind: str
    text: str
    answer: str


def _name(thing: Thing) -> str:
    return f"{thing.colour} {thing.shape}"


def _those(things: list[Thing], one: str, many: str) -> str:
    names = listed([f"the {_name(thing)}" for thing in things])
    return f"{names[0].upper()}{names[1:]} {one if len(things) == 1 else many}."


def _each(things: tuple[Thing, ...]) -> str:
    """Return the motion of every thing, in the order in which a caption names them."""
    said = {True: "moves", False: "does not move"}
    return " ".join(f"The {_name(thing)} {said[thing.motion in _MOVING]}." for thing in things)


def questions(scene: Scene) -> list[Question]:
    """Return the questions that a scene answers: one of each kind, and the final place of each thing."""
    things = scene.things
    events = [
        _those([thing for thing in things if thing.motion == motion], one, many)
        for motion, one, many in (("appears", "appears", "appear"), ("vanishes", "vanishes", "vanish"))
        if any(thing.motion == motion for thing in things)
    ]
    looks = [article(f"{thing.size} {_name(thing)}") for thing in things]
    answers = {
        "count": f"There {'is' if len(things) == 1 else 'are'} {counted(len(things))}.",
        "moves": _each(things),
        "appears": " ".join(events) or "Nothing appears or vanishes.",
        "short": f"The video shows {listed(looks)} on {article(f'{scene.pattern} {scene.background} background')}.",
    }
    asked = [Question(kind, QUESTIONS[kind], answer) for kind, answer in answers.items()]
    return asked + [
        Question(
            "end",
            QUESTIONS["end"].format(thing=_name(thing)),
            f"It ends at the {thing.end_place}." if thing.end_place else "It is gone at the end.",
        )
        for thing in things
    ]


def about_the_caption(text: str) -> list[Question]:
    """Return the questions that a caption answers, right or wrong about its video; none it does not mention."""
    said = parse(text)
    found = []
    if said.objects and {"size", "colour", "shape"} <= (first := said.objects[0]).keys():
        found.append(Question("first", QUESTIONS["first"], f"The {first['size']} {first['colour']} {first['shape']}."))
    if {"pattern", "background"} <= said.general.keys():
        answer = f"It is {said.general['pattern']} and {said.general['background']}."
        found.append(Question("backdrop", QUESTIONS["backdrop"], answer))
    return found


def draw_dialogue(scene: Scene, rng: random.Random) -> list[tuple[str, str]]:
    """Draw prompts and right answers: a caption followed by up to six questions, or four to seven questions.

    Two of three dialogues begin with the caption, and only these ask about its text. Questions in :data:`_HARD`
    come four times as soon as others.
    """
    begins = rng.random() < 2 / 3
    said = [(draw_prompt(rng), caption(scene, rng))] if begins else []
    known = questions(scene) + [one for _, answer in said for one in about_the_caption(answer)]
    count = min(len(known), rng.randint(0, 6) if begins else rng.randint(4, 7))
    order = sorted(known, key=lambda one: rng.expovariate(4.0 if one.kind in _HARD else 1.0))
    return said + [(one.text, one.answer) for one in order[:count]]


def is_right(said: str, question: Question) -> bool:
    """Return True if an answer is right, ignoring surrounding whitespace."""
    return " ".join(said.split()) == question.answer
