"""Self-drafting by the target: over kept visual tokens (Self-SD; SpecVLM 4), with low-bit weights, or both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from vidspec.drafting.base import Drafter, DrafterKind, drafters
from vidspec.registry import key

if TYPE_CHECKING:
    from vidspec.drafting.context import DraftContext
    from vidspec.engine.requests import Steps


@drafters.register("self")
class SelfDraft(DrafterKind):
    """A draft with the target's weights, or copies of them as integers (``draft.precision``).

    If visual tokens are pruned, the kept entries are gathered from the target's KV cache after its prefill: there is no
    second prefill, and lower layers have attended to the whole video. Otherwise it drafts on that cache: its entries
    are written after the text, and verification overwrites them with the target's. Self-speculation with low-bit
    weights or cache is known (such as QuantSpec); no paper's system is followed here.

    A drafter in its own process has a second copy of the weights and reads the pruned prompt.
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
        engine, prefix, read = clip.self_draft, clip.prefix, clip.read_by_target
        if engine is None or prefix is None or read is None:
            raise ValueError("the target's weights are in another worker")
        if self.prefill == "again":
            again = yield from clip.read(engine, clip.pruned(prefix))
            return clip.walker(engine, again.span)
        if clip.kept is None or len(clip.kept) == len(prefix.visual):
            return clip.walker(engine, read.span.make_follower())
        with clip.trace.span("draft_prefill", "draft"):
            rows = prefix.rows_kept(clip.kept.to(prefix.embeds.device))
            span = read.span.select(rows, len(rows) + clip.room)
            span.offset = prefix.next_position - len(rows)  # entries keep their positions
        return clip.walker(engine, span)
