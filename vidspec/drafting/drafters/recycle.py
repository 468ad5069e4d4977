"""Token recycling: drafting from the target's latest choice after each token (Luo et al. 2024, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vidspec.drafting.base import FreeDrafter, drafters

if TYPE_CHECKING:
    from vidspec.engine.rows import PassResult


@drafters.register("recycle")
class RecycleDraft(FreeDrafter):
    """Chains through a table of successors, shared by all clips of a run.

    The successor of a token is the target's greedy choice after its last occurrence, in the text or in a drafted
    window, rejected tokens included, since their rows are computed anyway. The paper keeps the k most probable
    successors and drafts a tree.
    """

    def __init__(self) -> None:
        self.successors: dict[int, int] = {}

    def forget(self) -> None:
        self.successors.clear()

    def guess(self, gamma: int) -> Sequence[int]:
        found, token = list[int](), self.text[-1]
        while len(found) < gamma and token in self.successors:
            token = self.successors[token]
            found.append(token)
        return found

    def read(self, tokens: Sequence[int], passed: PassResult) -> None:
        rows = [self.text[-1], *self.window]
        self.successors.update(zip(rows, passed.likeliest, strict=True))
        super().read(tokens, passed)
