"""Lookup in this text and in captions of this and earlier runs (SuffixDecoding, Oliaro et al. 2024)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from vidspec.drafting.base import drafters
from vidspec.drafting.lookup import LookupDrafter
from vidspec.drafting.memory import MemoryFile, TextMemory
from vidspec.registry import key

if TYPE_CHECKING:
    from vidspec.models.video_language_model import VideoLanguageModel

MemoryPath = Annotated[
    str | None, key("a file that keeps captions from run to run; runs that go on at once may share it", min_length=1)
]


@drafters.register("suffix")
class SuffixDraft(LookupDrafter):
    """Lookup with a memory of captions. Other clips' captions affect the speed of a caption, never its text.

    Args:
        least: the shortest match, in tokens.
        most: the longest match that is compared.
        capacity: the most tokens of captions kept.
    """

    def __init__(
        self,
        least: Annotated[int, Field(ge=1, le=16)] = 1,
        most: Annotated[int, Field(ge=1, le=256)] = 16,
        capacity: Annotated[int, Field(ge=1000, le=100_000_000)] = 1_000_000,
        memory: MemoryPath = None,
    ) -> None:
        super().__init__(least, most)
        self.capacity, self.file = capacity, memory

    def prepare(self, target: VideoLanguageModel) -> None:
        from vidspec.models.identity import model_identity

        self._kept: MemoryFile | None = None
        if self.file is not None:
            self._kept = MemoryFile(Path(self.file).expanduser(), model_identity(target).tokenizer, self.capacity)
            if self._kept.damaged:
                self.note = f"draft.memory: {self.file}: was damaged, and starts empty"
        self.forget()

    def forget(self) -> None:
        self.memory = TextMemory(self.capacity, self.least, self.most, self._kept)

    def close(self) -> None:
        if self.memory is not None:
            self.memory.save()
