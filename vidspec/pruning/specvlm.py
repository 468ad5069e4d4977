"""The few tokens that hold most attention, then even spacing over the rest (SpecVLM 3.2).

**D**: the budget is exact: stage II gets what stage I left of it, as in the paper's code (with Eq. 7 as it stands the
two stages together keep more), and stage I is cut where it alone would exceed it. Stage II spaces from end to end, the
first and the last of the remaining tokens among those kept, as the released code does with ``linspace``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from vidspec.pruning.base import Pruner, Signals, split
from vidspec.registry import key, pruners

if TYPE_CHECKING:
    import torch


@pruners.register("specvlm")
class SpecVLMPruner(Pruner):
    """Two-stage pruning by the target's attention.

    Args:
        family: of the target; App. A has 0.5 for Qwen2.5-VL, taken here for all of Qwen's, and 0.4 for LLaVA-OneVision.
    """

    needs = frozenset({"attention"})

    def __init__(
        self,
        lam_r: Annotated[
            float | None,
            key("share of attention that stage I keeps; null: the family's", ge=0, le=1, allow_inf_nan=False),
        ] = None,
        family: str = "",
    ) -> None:
        self.lam_r = (0.5 if family.startswith("qwen") else 0.4) if lam_r is None else lam_r

    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        import torch

        from vidspec.pruning.scores import head_count

        attention, visual = signals.require_attention(), signals.visual
        parts = split(visual, alpha)
        ranked = attention.sort(descending=True, stable=True).indices[: head_count(attention, self.lam_r)]
        head = ranked[~visual.required.to(ranked.device)[ranked]][: parts.wanted]
        rest = ~visual.required
        rest[head.to(rest.device)] = False
        tail = rest.nonzero()[:, 0]
        tail = tail[_end_to_end(len(tail), parts.wanted - len(head), tail.device)]
        return parts.kept(torch.cat([head.to(tail.device), tail]))


def _end_to_end(count: int, wanted: int, device: torch.device) -> torch.Tensor:
    """(wanted,) of the places 0 ... count - 1 at equal steps, both ends among them; the first alone if it is one.

    In integers, so that no two coincide.
    """
    import torch

    return torch.arange(wanted, device=device) * (count - 1) // max(1, wanted - 1)
