"""Whether two captions of one clip part at a near-tie, as those of lossless methods may in bfloat16 and float16.

A pass of several rows and a pass of one round differently, so where the target's first two logits are almost equal
either may win. What differs elsewhere is a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vidspec.captioner import Captioner
from vidspec.engine.requests import alone
from vidspec.engine.rows import Rows
from vidspec.events.compare import first_difference
from vidspec.events.trace import Trace
from vidspec.models.request import Request
from vidspec.video import Clip

__all__ = ["EPSILON", "gap"]

#: Gaps up to this share of the largest logit are near-ties: four to eight steps of bfloat16's 8 bits.
EPSILON = 2**-5


def gap(captioner: Captioner, clip: str | Path | Clip, one: Sequence[int], other: Sequence[int]) -> float:
    """How far apart the target's logits are where two of its captions part, computed afresh behind what they share.

    Returns:
        of the best logit and the lower of both tokens' the difference, as a share of the largest logit's size; 0 if
        the captions are equal, infinity if one is the beginning of the other.
    """
    shared = first_difference(one, other)
    if shared is None:
        return 0.0
    if shared == min(len(one), len(other)):
        return float("inf")
    generate, engine = captioner.profile.generate, captioner.target
    shown = clip if isinstance(clip, Clip) else captioner.read(clip)
    request = Request(shown.facts.path, shown, generate.prompt, generate.system)
    prefix = alone(captioner.setup.read(request, Trace()))
    read = engine.prefill(prefix, len(one))
    logits = read.logits
    for token in one[:shared]:
        logits = engine.run([Rows(read.span, [token])])[0].logits[-1]
    scores = logits.float()
    lower = min(float(scores[one[shared]]), float(scores[other[shared]]))
    return (float(scores.max()) - lower) / float(scores.abs().max())
