"""Self-drafting with the visual entries that each KV head attends to most (STD, as in ParallelVLM 5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from vidspec.bounds import MANY
from vidspec.drafting.base import Drafter, DrafterKind, drafters
from vidspec.registry import key

if TYPE_CHECKING:
    import torch

    from vidspec.drafting.context import DraftContext
    from vidspec.engine.requests import Steps


def entries_to_keep(visual: int, text: int, wanted: int, share: float) -> int:
    """Return K, the visual entries of each KV head: ``wanted`` less text, at most ``share`` of all visual ones.

    **D**: the paper's 1024 entries are meant for prompts of tens of thousands; a short prompt is pruned by the share.

    Args:
        visual, text: entries of the prompt.
        wanted: entries in total.
        share: the largest share of the visual entries.
    """
    return min(visual, max(1, min(wanted - text, round(share * visual))))


@drafters.register("sparse_kv")
class SparseKVDraft(DrafterKind):
    """Drafts on all text entries and, per layer and KV head, the K visual entries with the most attention.

    The attention of the text rows after the video, summed over the query heads of the group, is observed during the
    target's prefill; entries are chosen once. Generated tokens keep their positions.
    """

    needs = frozenset({"head_attention"})
    model = "target"
    sees = "own"
    gathers = True
    trees = True

    def __init__(
        self,
        entries: Annotated[int, key("cache entries that are read", ge=1, le=MANY)] = 1024,
        share: Annotated[float, key("of the visual entries, at most", gt=0, le=1, allow_inf_nan=False)] = 0.1,
    ) -> None:
        self.entries, self.share = entries, share

    def open(self, clip: DraftContext) -> Steps[Drafter]:
        import torch

        yield from ()
        engine, prefix, read, taps = clip.self_draft, clip.prefix, clip.read_by_target, clip.taps
        if engine is None or prefix is None or read is None or taps is None:
            raise ValueError("the target's weights are in another worker")
        visual = prefix.visual.index
        count = entries_to_keep(len(visual), prefix.length - len(visual), self.entries, self.share)
        with clip.trace.span("signals", "draft"):
            is_text = torch.ones(prefix.length, dtype=torch.bool, device=visual.device)
            is_text[visual] = False
            text = is_text.nonzero()[:, 0]
            rows = [_rows(scores, visual, text, count) for scores in taps.head_scores]
        with clip.trace.span("draft_prefill", "draft"):
            kept = rows[0].shape[1]
            span = read.span.select(rows, kept + clip.room)
            span.offset = prefix.next_position - kept
        return clip.walker(engine, span)


def _rows(scores: torch.Tensor, visual: torch.Tensor, text: torch.Tensor, count: int) -> torch.Tensor:
    """Return (kv_heads, count + text) sorted prompt rows of one layer, by ``scores`` (kv_heads, N)."""
    import torch

    best = visual.to(scores.device)[scores.topk(count, dim=-1).indices]
    return torch.cat([best, text.to(best).expand(len(scores), -1)], dim=-1).sort(dim=-1).values
