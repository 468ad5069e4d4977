"""The draft model without any visual token (OnSD; TABED App. I.2, ParallelVLM 5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec.drafting.base import Drafter, DrafterKind, drafters

if TYPE_CHECKING:
    from vidspec.drafting.context import DraftContext
    from vidspec.engine.requests import Steps
    from vidspec.models.base import EmbeddedPrompt


@drafters.register("text_only")
class TextOnlyDraft(DrafterKind):
    """A newline replaces the video in the prompt; the draft's vision tower is not used."""

    sees = "nothing"
    trees = True
    remote = True

    def encode(self, clip: DraftContext) -> Steps[object]:
        """Do nothing: the video is not used."""
        yield from ()
        return None

    def prefix(self, clip: DraftContext) -> Steps[EmbeddedPrompt]:
        yield from ()
        return clip.text("\n")

    def open(self, clip: DraftContext) -> Steps[Drafter]:
        engine = clip.drafting()
        read = yield from clip.read(engine, (yield from self.prefix(clip)))
        return clip.walker(engine, read.span)
