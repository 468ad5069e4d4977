"""The target drafts for itself, with a cache that holds only the kept visual tokens (Self-SD; SpecVLM 4)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from vidspec.drafting.base import Drafter
from vidspec.drafting.opening import Opening
from vidspec.engine.asks import Asks
from vidspec.models.base import Prefix
from vidspec.registry import drafters


@drafters.register("self")
class SelfDraft:
    """The target's weights, not a second copy.

    The kept entries are gathered from the target's own prefilled cache, so there is no second prefill; they have seen
    the whole video through the layers below. ``draft.prefill: again`` reads the pruned prompt afresh instead, and so
    does a drafter in a process of its own, which holds the same weights a second time.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def look(cls, clip: Opening) -> Asks[Any]:
        yield from clip.own()

    @classmethod
    def prompt(cls, clip: Opening) -> Asks[Prefix]:
        return clip.pruned((yield from clip.own()))

    @classmethod
    def open(cls, clip: Opening) -> Asks[Drafter]:
        engine, prefix, read = clip.target, clip.prefix, clip.read_by_target
        if engine is None or prefix is None or read is None:
            raise ValueError("the target's weights are in another worker")
        if clip.profile.draft.prefill == "again":
            again = yield from clip.read(engine, clip.pruned(prefix))
            return clip.walker(engine, again.span)
        with clip.trace.span("draft_prefill", "draft"):
            kept = torch.arange(len(prefix.visual)) if clip.kept is None else clip.kept
            rows = prefix.rows_kept(kept.to(prefix.embeds.device))
            span = read.span.select(rows, len(rows) + clip.room)
            span.offset = prefix.next_position - len(rows)  # entries keep the positions they were read at
        return clip.walker(engine, span)
