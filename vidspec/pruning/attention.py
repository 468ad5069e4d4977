"""The tokens the target's text attends to most while it reads its prompt (SpecVLM Eq. 4-5; HIPPO Eq. 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vidspec.pruning.base import Signals, top_scored
from vidspec.registry import pruners

if TYPE_CHECKING:
    import torch


@pruners.register("attention")
class Attention:
    """Args: ``keys``, what the softmax of each text row runs over: ``all`` it sees (SpecVLM) or the ``visual`` ones."""

    def __init__(self, keys: Literal["all", "visual"] = "all") -> None:
        self.needs = frozenset({"visual_attention" if keys == "visual" else "attention"})

    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        return top_scored(signals.require_attention(), signals.visual, alpha)
