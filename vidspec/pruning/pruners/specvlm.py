"""The tokens that hold most of the attention, then evenly spaced ones of the rest (SpecVLM 3.2).

**D**: the budget is exact. Stage II gets what stage I left of it, as in the paper's code (by Eq. 7 as printed the two
stages together keep more); stage I is cut if it alone exceeds the budget. Stage II spaces from end to end, including
the first and the last of the remaining tokens, as the released code does with ``linspace``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from vidspec.pruning.base import Pruner, Signals, pruners, split
from vidspec.registry import key

if TYPE_CHECKING:
    import torch


@pruners.register("specvlm")
class SpecVLMPruner(Pruner):
    """Two-stage pruning by the target's attention.

    Args:
        family: of the target, for the default ``lam_r``: 0.5 for Qwen2.5-VL in App. A, here for all Qwen models; 0.4
            for LLaVA-OneVision.
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
    """Return (wanted,) indices of 0 ... count - 1 at equal steps, both ends included; for one only the first.

    Integer arithmetic, so that no two coincide.
    """
    import torch

    return torch.arange(wanted, device=device) * (count - 1) // max(1, wanted - 1)
