"""The base of loose rules, which accept some mismatches on each branch of a window."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vidspec.acceptance.base import AcceptanceRule, Verdict
from vidspec.errors import ProfileError, option
from vidspec.events.events import LooseToken

if TYPE_CHECKING:
    import torch

    from vidspec.drafting.base import Draft
    from vidspec.engine.rows import PassResult
    from vidspec.engine.sampling import Sampling


@dataclass(frozen=True)
class WindowBranch:
    """One path from the last emitted token to a leaf: K drafted tokens; the whole window for a chain.

    Attributes:
        tokens: (K) drafted token ids.
        wanted: (K + 1) the target's argmax at each position, given the drafted tokens before it, and after all.
        measured: (K) the rule's measure of each drafted token.
    """

    tokens: tuple[int, ...]
    wanted: tuple[int, ...]
    measured: tuple[float, ...]

    @property
    def mismatches(self) -> list[int]:
        """Indices at which the target's argmax differs."""
        return [i for i, token in enumerate(self.tokens) if token != self.wanted[i]]


class LooseRule(AcceptanceRule):
    """Accepts drafted tokens that equal the target's argmax, and the mismatches in :meth:`accepted_mismatches`.

    It goes from left to right and ends at the first rejected mismatch, where the target's argmax is emitted. If all
    pass, the target's next argmax is the bonus. A loose token is emitted as drafted. Every branch of a tree, from the
    root to a leaf, counts as a window, and the one with the most accepted tokens wins (LVSpec App. E); ties go to the
    better-ranked child.

    **D**: end tokens and protected tokens are never loose, whether the draft or the target chose them; a rule that
    ranks or counts tokens includes them. Rules work on greedy drafts and targets only; LVSpec says nothing of sampling.

    Args:
        sampling: must be greedy.
        eos: the target's end tokens.
        protected: further token ids that are never loose.

    Raises:
        ProfileError: sampling is not greedy.
    """

    def __init__(
        self, sampling: Sampling, eos: frozenset[int] = frozenset(), protected: frozenset[int] = frozenset()
    ) -> None:
        if not sampling.greedy:
            raise ProfileError(
                f"{option('generate.temperature')}: {sampling.temperature:g}, and lossy rules compare greedy choices; "
                f"nearest valid choice: {option('generate.temperature', 0)}, or {option('accept.rule', 'exact')}"
            )
        self.strict = eos | protected

    def __call__(self, draft: Draft, passed: PassResult, rng: torch.Generator) -> Verdict:
        choices = passed.likeliest
        measured = self.measure(draft, passed, rng) if draft.tokens else []
        best: Verdict | None = None
        for path in branches(draft):
            verdict = self._verify_branch(draft, path, choices, measured)
            if best is None or verdict.accepted > best.accepted:
                best = verdict
        return best or Verdict((), choices[0])

    @abstractmethod
    def measure(self, draft: Draft, passed: PassResult, rng: torch.Generator) -> Sequence[float]:
        """Return the rule's measure of each drafted token; the arguments are those of the rule."""

    @abstractmethod
    def accepted_mismatches(self, branch: WindowBranch) -> Mapping[int, LooseToken]:
        """Return the mismatches to accept by index, with reasons; end and protected tokens are excluded later."""

    def _verify_branch(
        self, draft: Draft, path: tuple[int, ...], choices: Sequence[int], measured: Sequence[float]
    ) -> Verdict:
        branch = WindowBranch(
            tuple(draft.tokens[node] for node in path),
            (choices[0], *(choices[node + 1] for node in path)),
            tuple(measured[node] for node in path),
        )
        accepted = self.accepted_mismatches(branch)
        loosened: list[LooseToken] = []
        for i, (token, wanted) in enumerate(zip(branch.tokens, branch.wanted, strict=False)):
            if token == wanted:
                continue
            if i not in accepted or token in self.strict or wanted in self.strict:
                return Verdict(path[:i], wanted, tuple(loosened))
            loosened.append(accepted[i])
        return Verdict(path, branch.wanted[-1], tuple(loosened))


def branches(draft: Draft) -> Iterator[tuple[int, ...]]:
    """Yield the paths from the last emitted token to each leaf, as window indices, depth first; one for a chain."""
    if draft.is_chain:
        yield tuple(range(len(draft.tokens)))
        return
    open_: list[tuple[int, ...]] = [(node,) for node in reversed(draft.children(-1))]
    while open_:
        path = open_.pop()
        children = draft.children(path[-1])
        if not children:
            yield path
        open_ += [(*path, node) for node in reversed(children)]
