"""One run of adjacent visual tokens at the front, in the middle or at the end (window baselines of SpecVLM 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from vidspec.pruning.base import Pruner, Signals, pruners, split
from vidspec.registry import key

if TYPE_CHECKING:
    import torch


@pruners.register("window")
class WindowPruner(Pruner):
    """A window over the visual tokens in prompt order."""

    def __init__(
        self,
        place: Annotated[Literal["front", "middle", "end"], key("where in the video the window lies")] = "middle",
    ) -> None:
        self.place = place

    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        parts = split(signals.visual, alpha)
        behind = len(parts.free) - parts.wanted
        start = {"front": 0, "middle": behind // 2, "end": behind}[self.place]
        return parts.kept(parts.free[start : start + parts.wanted])
