"""Scores of captions against a scene: facts stated against true facts. No models.

A scene has the facts: number of objects, background colour, pattern, and for every object its colour, shape, size,
place at the start, motion, state at the end, and on which side of the next one it begins. Stated objects are matched to
true ones so that as many facts as possible agree (each used once).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from research.world.scene import BACKGROUNDS, COLOURS, PATTERNS, PLACES, SIZES, Scene
from vidspec.embedded.prompts import SHAPES

COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4}


def _any(words: Iterable[str]) -> str:
    return "(" + "|".join(sorted(words, key=len, reverse=True)) + ")"


_COLOUR, _SHAPE, _PLACE = _any(COLOURS), _any(SHAPES), _any(PLACES.values())
_LOOK = re.compile(rf"\b{_any(SIZES)} {_COLOUR} {_SHAPE}\b")
_AT = re.compile(rf"\bat the {_PLACE}\b", re.IGNORECASE)
_BACKDROP = re.compile(rf"\b{_any(PATTERNS)} {_any(BACKGROUNDS)} background\b")
_COUNT = re.compile(rf"\b{_any(COUNTS)} objects?\b")
_STATE = re.compile(rf"\bthe {_COLOUR} {_SHAPE} is (?:at the {_PLACE}|(gone))")
_SIDE = re.compile(rf"\bthe {_COLOUR} {_SHAPE} begins to the (left|right) of the", re.IGNORECASE)
#: Wordings of each motion.
MOTIONS = {
    "still": re.compile(r"stays in the same spot|does not move at any time"),
    "right": re.compile(r"moves to the right|travels right"),
    "left": re.compile(r"moves to the left|travels left"),
    "up": re.compile(r"moves upwards|\brises\b"),
    "down": re.compile(r"moves downwards|\bsinks\b"),
    "circles": re.compile(r"in circles|circling"),
    "appears": re.compile(r"\bappears partway|shows up later"),
    "vanishes": re.compile(r"\bvanishes\b|\bdisappears\b"),
}


@dataclass
class Statement:
    """Facts by name: ``general`` for the clip, one dictionary per object."""

    general: dict[str, str | int] = field(default_factory=dict)
    objects: list[dict[str, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.general) + sum(len(facts) for facts in self.objects)


@dataclass(frozen=True)
class Score:
    """``matched`` of ``stated`` facts are among the ``true`` ones."""

    matched: int
    stated: int
    true: int

    @property
    def precision(self) -> float:
        return self.matched / self.stated if self.stated else 0.0

    @property
    def recall(self) -> float:
        return self.matched / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.matched / (self.stated + self.true) if self.stated + self.true else 0.0


def truth(scene: Scene) -> Statement:
    """Return all facts of a scene."""
    statement = Statement(
        {"count": len(scene.things), "background": scene.background, "pattern": scene.pattern},
        [
            {
                "colour": thing.colour,
                "shape": thing.shape,
                "size": thing.size,
                "start": thing.place,
                "motion": thing.motion,
                "end": thing.end_place or "gone",
            }
            for thing in scene.things
        ],
    )
    for facts, one, two in zip(statement.objects, scene.things, scene.things[1:], strict=False):
        facts["side"] = "left" if one.start[0] < two.start[0] else "right"
    return statement


def parse(text: str) -> Statement:
    """Return the facts a caption states; of contradicting statements the first counts."""
    statement = Statement()
    current: dict[str, str] | None = None
    for sentence in re.split(r"(?<=\.)\s+", text.strip()):
        if not statement.general:
            if found := _COUNT.search(sentence):
                statement.general["count"] = COUNTS[found[1]]
            if found := _BACKDROP.search(sentence):
                statement.general.update(pattern=found[1], background=found[2])
        if look := _LOOK.search(sentence):
            current = {"size": look[1], "colour": look[2], "shape": look[3]}
            statement.objects.append(current)
            if place := _AT.search(sentence):
                current["start"] = place[1].lower()
        elif current is not None and sentence.startswith("It "):
            for motion, pattern in MOTIONS.items():
                if pattern.search(sentence):
                    current.setdefault("motion", motion)
        elif side := _SIDE.search(sentence):
            _attach(statement, side[1], side[2], "side", side[3])
        else:
            for state in _STATE.finditer(sentence):
                _attach(statement, state[1], state[2], "end", state[3] or state[4])
    return statement


def _attach(statement: Statement, colour: str, shape: str, name: str, value: str) -> None:
    for facts in statement.objects:
        if facts.get("colour") == colour and facts.get("shape") == shape:
            facts.setdefault(name, value)
            return
    statement.objects.append({name: value})


def score(text: str, real: Scene | Statement) -> Score:
    """Return precision, recall and F1 of the facts a caption states.

    Args:
        text: the caption.
        real: the scene, or its facts as ``truth.json`` holds them.
    """
    said, real = parse(text), real if isinstance(real, Statement) else truth(real)
    general = sum(said.general.get(name) == value for name, value in real.general.items())
    few, many = sorted((said.objects, real.objects), key=len)
    best = 0
    if len(few) <= 6 and len(many) <= 6:
        for chosen in itertools.permutations(many, len(few)):
            agree = sum(sum(a.get(k) == v for k, v in b.items()) for a, b in zip(few, chosen, strict=True))
            best = max(best, agree)
    return Score(general + best, len(said), len(real))


def total(scores: Iterable[Score]) -> Score:
    """Return pooled counts over clips (micro average)."""
    rows = list(scores)
    return Score(sum(s.matched for s in rows), sum(s.stated for s in rows), sum(s.true for s in rows))
