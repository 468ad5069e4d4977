"""The text so far and its prompt draft: what followed the last words where they occurred before (prompt lookup)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from vidspec.drafting.lookup import Lookup
from vidspec.registry import drafters


@drafters.register("ngram")
class NgramDraft(Lookup):
    """The clip's own text and prompt, and nothing of any other clip.

    Args:
        least: the shortest match, in tokens.
        most: matches are compared no further back.
    """

    def __init__(
        self, least: Annotated[int, Field(ge=1, le=16)] = 1, most: Annotated[int, Field(ge=1, le=256)] = 16
    ) -> None:
        super().__init__(least, most)
