"""Captions of scenes: the scene determines every statement, only the wording is drawn at random.

The first sentence has one wording. A model that has not read the clip yet can draft it up to what the clip decides, so
that tokens drafted while the target reads its prompt are as likely to be right as later ones.
"""

from __future__ import annotations

import itertools
import random

from research.world.scene import Scene, Thing
from vidspec.embedded.prompts import PROMPTS

_COUNTS = {1: "one", 2: "two", 3: "three", 4: "four"}
_ORDINALS = ("first", "second", "third", "fourth")

_MOTIONS = {
    "still": ("It stays in the same spot for the whole video.", "It does not move at any time."),
    "right": ("It moves to the right and ends up at the {end}.", "It travels right until it reaches the {end}."),
    "left": ("It moves to the left and ends up at the {end}.", "It travels left until it reaches the {end}."),
    "up": ("It moves upwards and ends up at the {end}.", "It rises until it reaches the {end}."),
    "down": ("It moves downwards and ends up at the {end}.", "It sinks until it reaches the {end}."),
    "circles": ("It goes around in circles near that spot.", "It keeps circling around the same area."),
    "appears": (
        "It is missing at first and appears partway through the clip.",
        "It only shows up later in the video and then stays.",
    ),
    "vanishes": (
        "It is visible at first but vanishes before the end.",
        "It disappears partway through the clip.",
    ),
}


def _pick(rng: random.Random, *choices: str) -> str:
    """Return one of two wordings; the first is likelier (weights 3 and 2)."""
    return rng.choices(choices, weights=(3, 2))[0]


def listed(items: list[str]) -> str:
    """Return the items as an enumeration."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def article(phrase: str) -> str:
    """Return the phrase with ``a`` or ``an`` before it."""
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def counted(count: int) -> str:
    """Return the number of objects in words."""
    return f"{_COUNTS[count]} {'object' if count == 1 else 'objects'}"


def _introduction(rng: random.Random, thing: Thing, index: int, count: int) -> str:
    look = f"{thing.size} {thing.colour} {thing.shape}"
    subject = "The object" if count == 1 else f"The {_ORDINALS[index]} object"
    what = _pick(
        rng,
        f"{subject} is a {look} at the {thing.place}.",
        f"At the {thing.place} there is a {look}.",
    )
    return f"{what} {_pick(rng, *_MOTIONS[thing.motion]).format(end=thing.end_place)}"


def draw_prompt(rng: random.Random) -> str:
    """Return one of :data:`~vidspec.embedded.prompts.PROMPTS`, most often the first."""
    return PROMPTS[0] if rng.random() < 0.6 else rng.choice(PROMPTS)


def caption(scene: Scene, rng: random.Random) -> str:
    """Return a paragraph that states all facts of ``scene``; ``rng`` draws the wording."""
    things = scene.things
    count = len(things)
    number = counted(count)
    backdrop = article(f"{scene.pattern} {scene.background} background")
    sentences = [f"The video shows {number} on {backdrop}."]
    sentences += [_introduction(rng, thing, i, count) for i, thing in enumerate(things)]
    for one, two in itertools.pairwise(things):
        side = "left" if one.start[0] < two.start[0] else "right"
        sentences.append(f"The {one.colour} {one.shape} begins to the {side} of the {two.colour} {two.shape}.")
    if count == 1:
        sentences.append("It is the only object in the whole scene.")
    states = [
        f"the {thing.colour} {thing.shape} is " + (f"at the {thing.end_place}" if thing.end_place else "gone")
        for thing in things
    ]
    sentences.append(f"{_pick(rng, 'By the end of the video', 'In the last frame')}, {listed(states)}.")
    colours = listed([thing.colour for thing in things])
    sentences.append(
        f"In total there is one object, and it is {colours}."
        if count == 1
        else f"In total there are {number}, and they are {colours}."
    )
    sentences.append(
        _pick(
            rng,
            f"The background stays {scene.pattern} and {scene.background} the whole time.",
            f"Throughout the video, the {scene.pattern} {scene.background} background does not change.",
        )
    )
    sentences.append(
        _pick(
            rng,
            "The camera does not move, and nothing else enters the scene.",
            "There are no other objects in the scene, and the camera is still.",
        )
    )
    return " ".join(sentences)
