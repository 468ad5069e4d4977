"""The draft model without any visual token (OnSD; TABED App. I.2, ParallelVLM 5.1)."""

from __future__ import annotations

from typing import ClassVar

from vidspec.drafting.base import Drafter
from vidspec.drafting.opening import Opening
from vidspec.engine.asks import Asks
from vidspec.models.base import Prefix
from vidspec.registry import drafters


@drafters.register("text_only")
class TextOnlyDraft:
    """The place of the video in the prompt is taken by a newline; the draft's vision tower is not used."""

    needs: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def look(cls, clip: Opening) -> None:
        """No use is made of the video."""

    @classmethod
    def prompt(cls, clip: Opening) -> Prefix:
        return clip.text("\n")

    @classmethod
    def open(cls, clip: Opening) -> Asks[Drafter]:
        engine = clip.drafting()
        read = yield from clip.read(engine, cls.prompt(clip))
        return clip.walker(engine, read.span)
