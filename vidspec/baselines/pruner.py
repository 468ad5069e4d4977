"""Base classes of the methods that prune the target: rules, run by the engine and loop of pruned targets. No torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from vidspec.baselines.base import PruningRule, on_average, without_overlap
from vidspec.lossy import LossyMethod

if TYPE_CHECKING:
    from vidspec.decoding.sequence import Sequence as ClipSequence
    from vidspec.engine.requests import Steps
    from vidspec.models.video_language_model import VideoLanguageModel


class TargetPruner(PruningRule, LossyMethod):
    """Drops visual tokens of the target, and decodes plainly."""

    def prepare(self, target: VideoLanguageModel) -> None:
        from vidspec.baselines.engine import check_blocks

        check_blocks(target)
        self.stages(target.layers)

    def run(self, sequence: ClipSequence) -> Steps[None]:
        from vidspec.baselines.engine import decode

        return decode(self, sequence)


class StagedPruner(TargetPruner):
    """Drops tokens after some of the blocks.

    Args:
        keep: the share of the prompt's visual tokens kept at each stage; None for the method's own shares, scaled to
            ``retention``.
        retention: mean share over the blocks.
    """

    #: Shares kept in the paper; only their ratios count.
    paper: ClassVar[tuple[float, ...]] = (1.0,)

    def __init__(self, keep: Sequence[float] | None, retention: float) -> None:
        self.keep, self.retention = keep, retention

    @abstractmethod
    def placed(self, depth: int, shares: Sequence[float]) -> list[tuple[int, float]]:
        """Return (number of blocks before the stage, share) of each stage in a model of ``depth`` blocks."""

    def stages(self, depth: int) -> Mapping[int, float]:
        if self.keep is None:
            return on_average(self.placed(depth, self.paper), depth, self.retention)
        return without_overlap(self.placed(depth, self.keep), depth)
