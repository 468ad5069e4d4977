"""Pruning by language-to-video attention in the target's prefill (SpecVLM Eq. 4-5; HIPPO Eq. 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from vidspec.pruning.base import ScoringPruner, Signals, pruners
from vidspec.registry import key

if TYPE_CHECKING:
    import torch


SoftmaxKeys = Annotated[
    Literal["all", "visual"],
    key("the softmax of a text row runs over all keys it sees (SpecVLM) or the visual ones (HIPPO Eq. 2)"),
]


@pruners.register("attention")
class AttentionPruner(ScoringPruner):
    def __init__(self, keys: SoftmaxKeys = "all") -> None:
        self.needs = frozenset({"visual_attention" if keys == "visual" else "attention"})

    def scores(self, signals: Signals) -> torch.Tensor:
        return signals.require_attention()
