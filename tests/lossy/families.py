"""A small random model of every family with a prompt, and plain decoding of it."""

from functools import cache

import torch
from engine.passing import forward
from models import checkpoints, checkpoints_llava, checkpoints_qwen

from vidspec.lossy.base import Choice, TargetPruner
from vidspec.registry import families

PROMPT = "Describe the video."
FAMILIES = sorted(families.names())
ROOM = 16


@cache
def case(family):
    """(model, prompt)."""
    if family == "llava_onevision":
        model = checkpoints.adapter(checkpoints.TIED)
        shown = checkpoints.pixels(6)
    elif family.startswith("qwen"):
        model = checkpoints_qwen.adapter(checkpoints_qwen.Kind(family))
        shown = checkpoints_qwen.pixels(model, frames=12)
    else:
        model = checkpoints_llava.adapter(checkpoints_llava.Kind(family))
        shown = model.preprocess(checkpoints_llava.clip(6, 60, 90))
    return model, model.prefix(model.see(shown), PROMPT)


def decode(engine, prefix, tokens=8):
    """The greedy text, the logits of each place, and the state behind it."""
    state = engine.prefill(prefix, ROOM)
    logits = [state.logits]
    text = [int(state.logits.argmax())]
    for _ in range(tokens - 1):
        logits.append(forward(engine, state, text[-1:]).logits[-1])
        text.append(int(logits[-1].argmax()))
    return text, torch.stack(logits), state


class Recorded(TargetPruner):
    """A method that notes, per stage, which of the prompt's visual tokens are left."""

    def __init__(self, method, visual):
        self.method, self.left, self.kept = method, torch.arange(len(visual)), {}

    def before(self, prefix):
        return self.method.before(prefix)

    def stages(self, depth):
        self.shares = self.method.stages(depth)
        self.waiting = sorted(self.shares)
        return self.shares

    def choose(self, reading, share) -> Choice:
        choice = self.method.choose(reading, share)
        self.left = self.left[choice.kept]
        self.kept[self.waiting.pop(0)] = self.left
        return choice
