"""Strict for tokens that are relevant to the video, loose for others (LVSpec 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Annotated

from vidspec.acceptance.base import GroundedRule, rules
from vidspec.acceptance.loose import LooseRule, WindowBranch
from vidspec.bounds import MANY
from vidspec.events.events import LooseToken
from vidspec.registry import key

if TYPE_CHECKING:
    import torch

    from vidspec.acceptance.base import AcceptanceRule
    from vidspec.drafting.base import Draft
    from vidspec.engine.rows import PassResult
    from vidspec.engine.sampling import Sampling


def relevance(hidden: torch.Tensor, visual_states: torch.Tensor, similar: int) -> torch.Tensor:
    """Return (n,) float32 visual relevance of tokens: the mean of each token's largest cosines (LVSpec Eq. 8).

    Args:
        hidden: (n, hidden) the target's last states at the tokens' own positions.
        visual_states: (N, hidden) the last states at the prompt's visual positions, each of length 1.
        similar: number of cosines in the mean; all if N is smaller.
    """
    import torch

    own = torch.nn.functional.normalize(hidden.float(), dim=-1).to(visual_states)
    cosines = (own @ visual_states.T).float()
    return cosines.topk(min(similar, cosines.shape[1]), dim=-1).values.mean(-1)


@rules.register("lvspec")
class LVSpec(LooseRule, GroundedRule):
    """LVSpec's visual-semantic guidance and position-shift tolerance.

    With H_V the target's last states at the prompt's N_V visual positions, h_i that at the i-th of K drafted tokens d
    (its own position), and t the target's argmax at each position::

        A_i = mean of the N largest of cos(h_i, H_V)                                    (Eq. 8)
        I'  = the floor(lam * K) indices with the smallest A; ties to the lower index   (Eq. 9)
        accept d_i  if  d_i = t_i,  or  i in I',  or  t_i in {d_1 ... d_K}              (Eq. 10-11)

    The third case is the tolerance. The states are taken after the final norm. lam = 0 without tolerance is exact
    greedy verification, token for token.

    **D**: K is the length of the current window, which is shorter at the end of a text; in the parallel schedule, that
    of the pending window. I' is chosen among all K tokens, whether or not they match or may be loose. floor(lam * K) is
    computed in decimal, so that 0.57 * 100 gives 57. A prompt with fewer than N visual tokens takes the mean over all.
    The defaults hold for every draft, where the paper takes lam 0.3 and N 5 for a 3B draft of a 32B target (App. D).

    Args:
        sampling, eos, protected: see :class:`LooseRule`.
    """

    def __init__(
        self,
        sampling: Sampling,
        eos: frozenset[int] = frozenset(),
        protected: frozenset[int] = frozenset(),
        lam: Annotated[float, key("share of a window that is loose", ge=0, le=1, allow_inf_nan=False)] = 0.7,
        similar: Annotated[
            int, key("N, visual positions that a token's relevance is the mean over", ge=1, le=MANY)
        ] = 10,
        tolerance: Annotated[bool, key("a token may pass at a shifted position (Eq. 11)")] = True,
    ) -> None:
        super().__init__(sampling, eos, protected)
        self.lam, self.similar, self.tolerance = lam, similar, tolerance
        self.accepts_unverified = lam
        self._visual: torch.Tensor | None = None

    def for_clip(self, visual_states: torch.Tensor) -> AcceptanceRule:
        one = copy(self)
        one._visual = visual_states
        return one

    def measure(self, draft: Draft, passed: PassResult, rng: torch.Generator) -> Sequence[float]:
        """Return the visual relevance of each drafted token, from one matrix product for the window (Eq. 8)."""
        if self._visual is None:
            raise ValueError("lvspec needs the target's last states at the prompt's visual tokens")
        return relevance(passed.hidden[1:], self._visual, self.similar).tolist()

    def accepted_mismatches(self, branch: WindowBranch) -> Mapping[int, LooseToken]:
        relevance = branch.measured
        ranked = sorted(range(len(relevance)), key=relevance.__getitem__)  # stable: ties to the lower index
        loose = set(ranked[: int(self.lam * len(relevance) + 1e-9)])
        found: dict[int, LooseToken] = {}
        for i in branch.mismatches:
            if i in loose:
                found[i] = LooseToken(i, branch.wanted[i], "relevance", relevance=relevance[i])
            elif self.tolerance and branch.wanted[i] in branch.tokens:
                found[i] = LooseToken(i, branch.wanted[i], "shift", relevance=relevance[i])
        return found
