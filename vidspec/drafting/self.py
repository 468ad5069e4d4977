"""The target drafts for itself, with a cache that holds only the kept visual tokens (Self-SD; SpecVLM 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from vidspec.drafting.base import Drafter, DrafterKind
from vidspec.registry import drafters, key

if TYPE_CHECKING:
    from vidspec.drafting.context import DraftContext
    from vidspec.engine.requests import Steps


@drafters.register("self")
class SelfDraft(DrafterKind):
    """The target's weights, not a second copy.

    The kept entries are gathered from the target's own KV cache after its prefill, so there is no second prefill, and
    lower layers have attended to the whole video. A drafter in its own process has a second copy of the weights and
    reads the pruned prompt.
    """

    model = "target"
    trees = True
    remote = True

    def __init__(
        self,
        prefill: Annotated[
            Literal["gather", "again"],
            key("its cache is gathered from the target's, or the pruned prompt is read again"),
        ] = "gather",
    ) -> None:
        self.prefill, self.gathers = prefill, prefill == "gather"

    def open(self, clip: DraftContext) -> Steps[Drafter]:
        import torch

        engine, prefix, read = clip.target, clip.prefix, clip.read_by_target
        if engine is None or prefix is None or read is None:
            raise ValueError("the target's weights are in another worker")
        if self.prefill == "again":
            again = yield from clip.read(engine, clip.pruned(prefix))
            return clip.walker(engine, again.span)
        with clip.trace.span("draft_prefill", "draft"):
            kept = torch.arange(len(prefix.visual)) if clip.kept is None else clip.kept
            rows = prefix.rows_kept(kept.to(prefix.embeds.device))
            span = read.span.select(rows, len(rows) + clip.room)
            span.offset = prefix.next_position - len(rows)  # entries keep the positions they were read at
        return clip.walker(engine, span)
