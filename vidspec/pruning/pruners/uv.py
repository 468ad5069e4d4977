"""Pruning by gain in similarity to the text over the target's first layers (UV-Prune, ParallelVLM 4.1).

**D**: the text is the part of the prompt after the video, as in the paper's sequence V_1:m, X_1:n. Text before the
video cannot attend to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from vidspec.bounds import LAYERS
from vidspec.errors import ProfileError, option
from vidspec.pruning.base import ScoringPruner, Signals, pruners
from vidspec.registry import key

if TYPE_CHECKING:
    import torch

SignalLayer = Annotated[
    int | None, key("L of ParallelVLM Eq. 3; null: 20, half the depth of a target under 24 blocks", ge=1, le=LAYERS)
]

#: L of the paper, for all its targets of 28 to 80 blocks.
_LAYER = 20


def signal_layer(layer: int | None, depth: int | None, *, last: int | None = None) -> int:
    """Return L, the layer whose signals prune the draft's video (ParallelVLM App. D).

    **D**: 20 as in the paper, also for its targets of 28 blocks; half the depth for targets of fewer than 24 blocks,
    where 20 would be at or past the end. An explicit layer is used as given.

    Args:
        layer: explicit layer, or None for the rule.
        depth: blocks of the target; None if unknown.
        last: last valid layer; ``depth`` if None.

    Raises:
        ProfileError: the target has no such layer.
    """
    if depth is None:
        return _LAYER if layer is None else layer
    last = depth if last is None else last
    if layer is None:
        return _LAYER if depth >= 24 else min(max(1, depth // 2), last)
    if layer > last:
        raise ProfileError(
            f"{option('prune.layer')}: {layer} is beyond the target's {depth} blocks", hint=f"take at most {last}"
        )
    return layer


@pruners.register("uv")
class UVPruner(ScoringPruner):
    """UV-Prune: similarity variation between layer 0 and layer L.

    Args:
        depth: blocks of the target.
    """

    def __init__(self, layer: SignalLayer = None, depth: int | None = None) -> None:
        self.layer = signal_layer(layer, depth)
        self.needs = frozenset({"hidden@0", f"hidden@{self.layer}"})

    def scores(self, signals: Signals) -> torch.Tensor:
        from vidspec.pruning.scores import similarity_variation

        deep, shallow = signals.require_hidden(self.layer), signals.require_hidden(0)
        return similarity_variation(deep, shallow, signals.visual.index, signals.require_text())
