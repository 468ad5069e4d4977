"""Drafting by a smaller model of the target's family (Std-SD; SpecVLM 4, ParallelVLM 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec.drafting.base import Drafter, DrafterKind, drafters

if TYPE_CHECKING:
    from vidspec.drafting.context import DraftContext
    from vidspec.engine.requests import Steps


@drafters.register("model")
class ModelDraft(DrafterKind):
    """A draft model with its own vision tower, prompt (the kept visual tokens) and KV cache."""

    trees = True
    remote = True

    def open(self, clip: DraftContext) -> Steps[Drafter]:
        engine = clip.drafting()
        read = yield from clip.read(engine, (yield from clip.kept_of_own()))
        return clip.walker(engine, read.span)
