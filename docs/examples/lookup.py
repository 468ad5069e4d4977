"""A drafter without a model: what followed the last words when they stood in the text before is proposed again."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from vidspec.drafting.base import FreeDrafter, drafters
from vidspec.drafting.context import DraftContext


@drafters.register("lookup")
class Lookup(FreeDrafter):
    """Prompt lookup: proposes a copy of what stands behind the latest place that ends as the text does.

    Args:
        longest, shortest: tokens that have to agree; the longest agreement is looked for first.
        prompt: whether the text of the prompt is searched too.
    """

    def __init__(
        self,
        longest: Annotated[int, Field(ge=1)] = 3,
        shortest: Annotated[int, Field(ge=1)] = 1,
        prompt: bool = True,
    ) -> None:
        self.longest, self.shortest, self.searched = longest, shortest, prompt

    def opened(self, clip: DraftContext) -> None:
        self.seen = list(self.prompt) if self.searched else []

    def accept(self, token_ids: Sequence[int]) -> None:
        self.seen += token_ids

    def guess(self, gamma: int) -> Sequence[int]:
        seen = self.seen
        for size in range(self.longest, self.shortest - 1, -1):
            for start in range(len(seen) - size - 1, -1, -1):
                if seen[start : start + size] == seen[-size:]:
                    return seen[start + size : start + size + gamma]
        return []
