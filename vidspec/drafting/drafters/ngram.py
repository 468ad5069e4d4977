"""Prompt lookup: proposes the continuations of earlier occurrences of the last tokens in text and prompt."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from vidspec.drafting.base import drafters
from vidspec.drafting.lookup import LookupDrafter


@drafters.register("ngram")
class NgramDraft(LookupDrafter):
    """Lookup in the clip's own text and prompt only.

    Args:
        least: the shortest match, in tokens.
        most: the longest match that is compared.
    """

    def __init__(
        self, least: Annotated[int, Field(ge=1, le=16)] = 1, most: Annotated[int, Field(ge=1, le=256)] = 16
    ) -> None:
        super().__init__(least, most)
