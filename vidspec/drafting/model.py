"""A smaller model of the target's family drafts (Std-SD; SpecVLM 4, ParallelVLM 4)."""

from __future__ import annotations

from typing import Any, ClassVar

from vidspec.drafting.base import Drafter
from vidspec.drafting.opening import Opening
from vidspec.engine.asks import Asks
from vidspec.models.base import Prefix
from vidspec.registry import drafters


@drafters.register("model")
class ModelDraft:
    """Its own vision tower, its own prompt with the kept visual tokens, its own cache."""

    needs: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def look(cls, clip: Opening) -> Asks[Any]:
        yield from clip.own()

    @classmethod
    def prompt(cls, clip: Opening) -> Asks[Prefix]:
        return clip.pruned((yield from clip.own()))

    @classmethod
    def open(cls, clip: Opening) -> Asks[Drafter]:
        engine = clip.drafting()
        read = yield from clip.read(engine, (yield from cls.prompt(clip)))
        return clip.walker(engine, read.span)
