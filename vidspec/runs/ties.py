"""Near-tie test for two captions of one clip, which lossless methods may give except in float32 on a CPU.

Passes over one row and over several rows round differently, so if the target's two best logits are almost equal,
either token may win (docs/research/metrics.md, Losslessness). Any other difference is a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from vidspec.decoding.engine_client import EngineClient
from vidspec.decoding.text_history import make_history
from vidspec.engine.requests import run_to_completion
from vidspec.engine.rows import Rows
from vidspec.events.compare import first_difference
from vidspec.events.trace import Trace
from vidspec.models.request import CaptionRequest

__all__ = ["EPSILON", "is_near_tie", "logit_gap", "tie_limit"]

#: Gaps up to this share of the largest logit are near-ties: four to eight steps of bfloat16's 8 bits.
EPSILON = 2**-5


def is_near_tie(client: EngineClient, request: CaptionRequest, one: Sequence[int], other: Sequence[int]) -> bool:
    """Return True if two captions first differ at a near-tie. Arguments as in :func:`logit_gap`."""
    target = client.setup.target.model
    limit = tie_limit(target.dtype, target.device)
    return limit > 0 and client.thread.call(partial(logit_gap, client, request, one, other)) <= limit


def tie_limit(dtype: torch.dtype, device: torch.device) -> float:
    """Return the largest gap of a near-tie: :data:`EPSILON`, 1e-4 in float32 on a GPU, none in float32 on a CPU.

    A GPU's float32 products are summed in another order for another number of rows.
    """
    if dtype is not torch.float32:
        return EPSILON
    return 0.0 if device.type == "cpu" else 1e-4


@torch.inference_mode()
def logit_gap(client: EngineClient, request: CaptionRequest, one: Sequence[int], other: Sequence[int]) -> float:
    """Return the gap of the target's logits where two captions first differ, recomputed after their shared tokens.

    Args:
        client: has the target, with no clip in flight, or its thread makes this call.
        request: the clip with its frames.
        one, other: token ids.

    Returns:
        difference of the best logit and the lower of both tokens' logits, as a share of the largest absolute logit; 0
        if the captions are equal, infinity if one is the beginning of the other.
    """
    first = first_difference(one, other)
    if first is None:
        return 0.0
    if first == min(len(one), len(other)):
        return float("inf")
    engine, generate = client.setup.target, client.profile.generate
    prompt, system = request.prompt or generate.prompt, request.system or generate.system
    full_request = CaptionRequest(request.path, request.frames, prompt, system, earlier=request.earlier)
    prefix = run_to_completion(client.setup.read(full_request, Trace()))
    prefilled = engine.prefill(prefix, len(one))
    logits = prefilled.logits
    for token in one[:first]:
        logits = engine.run([Rows(prefilled.span, [token])])[0].logits[-1]
    scores, history = logits.float(), make_history(generate, engine.model, prefix.token_ids)
    banned = torch.tensor(engine.model.bans.always, dtype=torch.long, device=scores.device)
    size = float(scores.index_fill(0, banned, 0.0).abs().max())
    if history is not None:
        scores = history.changes_for_paths([one[:first]])(scores[None])[0]
    lower = min(float(scores[one[first]]), float(scores[other[first]]))
    return (float(scores.max()) - lower) / size
