"""A smaller model of the target's family drafts (Std-SD; SpecVLM 4, ParallelVLM 4)."""

from __future__ import annotations

from typing import ClassVar

from vidspec.drafting.base import Drafter
from vidspec.drafting.opening import Opening
from vidspec.models.base import Prefix
from vidspec.registry import drafters


@drafters.register("model")
class ModelDraft:
    """Its own vision tower, its own prompt with the kept visual tokens, its own cache."""

    needs: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def look(cls, clip: Opening) -> None:
        clip.own()

    @classmethod
    def prompt(cls, clip: Opening) -> Prefix:
        return clip.pruned(clip.own())

    @classmethod
    def open(cls, clip: Opening) -> Drafter:
        engine = clip.drafting()
        return clip.walker(engine, clip.read(engine, cls.prompt(clip)).span)
