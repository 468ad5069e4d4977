"""Drafting by a block head over the target's states (DFlash, arXiv 2602.06036), ``models.draft``.

The head's context is one vector for each row of the target's prompt: of the text, and of the visual tokens that
``prune`` keeps, at their own positions. With ``visual: none`` it is that of the text rows alone, which have read the
video (Sparrow, arXiv 2602.15318): its cache does not grow with the video.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

from vidspec.drafting.base import Drafter, DrafterKind, drafters
from vidspec.drafting.head import HeadAxes, context_rows, row_positions
from vidspec.errors import option
from vidspec.registry import OptionConflict

if TYPE_CHECKING:
    from vidspec.config.schema import Profile
    from vidspec.drafting.context import DraftContext
    from vidspec.engine.forward import Engine
    from vidspec.engine.requests import Steps
    from vidspec.models.dflash import BlockHead


@drafters.register("dflash")
class BlockDraft(DrafterKind):
    """A block of masked positions in one pass.

    Args:
        visual: ``all``: the head reads the visual tokens that ``prune`` keeps, and audio tokens; ``none``: text rows
            only.
        axes: see :class:`~vidspec.drafting.head.HeadDraft`.
    """

    model = "head"
    head = "dflash"
    trees = True

    def __init__(self, visual: Literal["all", "none"] = "all", axes: HeadAxes = "auto") -> None:
        self.sees, self.axes = "kept" if visual == "all" else "nothing", axes

    def check(self, profile: Profile) -> Iterable[OptionConflict]:
        if profile.draft.kind == "dflash" and profile.draft.topology == "tree":
            reason = "the tree of a block grows by the probabilities of its positions"
            yield OptionConflict("draft.topology", reason, option("draft.topology", "adaptive"))

    def open(self, clip: DraftContext) -> Steps[Drafter]:
        from vidspec.drafting.block import BlockDrafter
        from vidspec.engine.requests import Encode
        from vidspec.engine.rows import ContextRows

        prefix, taps = clip.prefix, clip.taps
        if clip.head is None or prefix is None or taps is None:
            raise ValueError("a head reads states of the target's prompt")
        engine = cast("Engine[BlockHead]", clip.head)
        head = engine.model
        rows = context_rows(prefix, clip.kept, text_only=self.sees == "nothing")
        positions, following = row_positions(head, clip, rows, self.axes)
        with clip.trace.span("draft_prefill", "draft"):
            states = taps.joined_states(head.blocks, rows)
            span = engine.open(len(rows) + clip.room + head.size, following - len(rows))
            context = ContextRows([states], positions.expand(head.decoder.axes, -1))
            yield Encode(partial(engine.read_context, span, context), "draft")
        tree = clip.profile.draft.topology == "adaptive"
        return BlockDrafter(engine, span, clip.sampling, clip.rng, tree=tree)
