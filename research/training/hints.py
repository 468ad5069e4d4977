"""Auxiliary losses on a target's middle layers, during training only.

A caption says a thing's motion in one word, and the loss on that word alone hardly teaches a model to follow the thing
through a hundred visual tokens. So linear probes predict it where it can first be known. At a third of the depth, from
every visual token: its time and, for the thing it shows, the starting place, the motion so far and whether it was
present from the start. At two thirds, from every name of a thing: all facts of the thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from research.training.architecture import Grid
from research.training.codes import pool_shares
from research.world.scene import COLOURS, MOTIONS, PLACES, SIZES, Scene, Thing
from vidspec.embedded.prompts import SHAPES

#: Share of a visual token from which on it shows a thing, and how far a thing has come when it has moved.
_SHOWN, _MOVED = 0.12, 0.1
#: Part of a clip after which circling can be distinguished from other motions.
_CIRCLED = 0.35
_TIMES = 8
_PLACES = tuple(PLACES.values())
_SO_FAR = ("still", "right", "left", "up", "down", "circles")
#: Questions of a visual token and of a name, with the numbers of their answers.
SEEN = {"time": _TIMES, "start": len(_PLACES), "so far": len(_SO_FAR), "late": 2}
NAMED = {
    "motion": len(MOTIONS),
    "start": len(_PLACES),
    "end": len(_PLACES) + 1,
    "shape": len(SHAPES),
    "size": len(SIZES),
}
#: Tokens after a colour that still belong to the thing's name.
_NAME = 2


class Hints(torch.nn.Module):
    """Probes on the hidden states of ``layers`` blocks of width ``hidden``."""

    def __init__(self, hidden: int, layers: int):
        super().__init__()
        self.depths = layers // 3, 2 * layers // 3
        self.seen = torch.nn.Linear(hidden, sum(SEEN.values()))
        self.named = torch.nn.Linear(hidden, sum(NAMED.values()))

    def watch(self, blocks: Any) -> tuple[list[torch.Tensor], list[Any]]:
        """Return a list for the two blocks' outputs in the next forward pass, and the hooks to remove after it."""
        states: list[torch.Tensor] = []
        return states, [
            blocks[depth - 1].register_forward_hook(lambda *call: states.append(call[2])) for depth in self.depths
        ]

    def loss(
        self, states: Sequence[torch.Tensor], visual: torch.Tensor, seen: torch.Tensor, named: torch.Tensor
    ) -> torch.Tensor:
        """Mean loss of all questions.

        Args:
            states: two of (B, L, hidden).
            visual: (B, K) places in L of visual tokens.
            seen: (B, K, questions) of :func:`seen_truth`, -1 without a question.
            named: (B, L, questions) of :func:`named_truth`.
        """
        early, late = (F.rms_norm(state.float(), state.shape[-1:]) for state in states)
        early = early.gather(1, visual[:, : seen.shape[1], None].expand(-1, -1, early.shape[-1]))
        asked = (self.seen, early, seen, SEEN), (self.named, late, named, NAMED)
        losses = [part for probe, known, truth, kinds in asked for part in _ask(probe, known, truth, kinds)]
        return torch.stack(losses).mean()


def _ask(probe: Any, states: torch.Tensor, truth: torch.Tensor, kinds: dict[str, int]) -> list[torch.Tensor]:
    where = (truth >= 0).any(-1)
    if not bool(where.any()):
        return []
    states, truth = states[where], truth[where]
    answers = probe(states).split(tuple(kinds.values()), dim=-1)
    return [
        F.cross_entropy(answer, right, ignore_index=-1)
        for answer, right in zip(answers, truth.unbind(-1), strict=True)
        if bool((right >= 0).any())
    ]


def _so_far(thing: Thing, t: float) -> int:
    if thing.motion == "circles":
        return _SO_FAR.index("circles") if t > _CIRCLED else -1
    if thing.motion not in _SO_FAR:
        return 0
    (x, y), (a, b) = thing.position(t), thing.at
    return _SO_FAR.index(thing.motion) if max(abs(x - a), abs(y - b)) > _MOVED else 0


def seen_truth(scene: Scene, share: np.ndarray, grid: Grid, kept: np.ndarray) -> np.ndarray:
    """Return (K, questions) int64 labels of the visual tokens ``kept``, -1 for unknown ones.

    ``share`` is (things, T, patch rows, patch columns).
    """
    pooled = pool_shares(share, grid).astype(np.float32)
    steps = pooled.shape[1]
    pooled = pooled.reshape(len(pooled), -1)[:, kept]
    most, shown = pooled.argmax(0), pooled.max(0) > _SHOWN
    moments = (kept // grid.tokens + 0.5) / steps
    truth = np.full((len(kept), len(SEEN)), -1)
    truth[:, 0] = moments * _TIMES
    for place in np.flatnonzero(shown):
        thing = scene.things[most[place]]
        truth[place, 1:] = (
            _PLACES.index(thing.place),
            _so_far(thing, float(moments[place])),
            thing.motion == "appears",
        )
    return truth


def colour_ids(tokenizer: Any) -> dict[int, str]:
    """Return the tokens that are colours of things."""
    found = {}
    for colour in COLOURS:
        for form in (colour, f" {colour}"):
            ids = tokenizer.encode(form)
            if len(ids) == 1:
                found[ids[0]] = colour
    return found


def named_truth(scene: Scene, tokens: Sequence[int], colours: dict[int, str]) -> np.ndarray:
    """Return (len(tokens), questions) int64 labels at each name of a thing, -1 elsewhere."""
    truth = np.full((len(tokens), len(NAMED)), -1)
    things = {thing.colour: thing for thing in scene.things}
    for place, token in enumerate(tokens):
        thing = things.get(colours.get(token, ""))
        if thing is None:
            continue
        truth[place : place + 1 + _NAME] = (
            MOTIONS.index(thing.motion),
            _PLACES.index(thing.place),
            len(_PLACES) if thing.end_place is None else _PLACES.index(thing.end_place),
            SHAPES.index(thing.shape),
            tuple(SIZES).index(thing.size),
        )
    return truth
