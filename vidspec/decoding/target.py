"""The target's side of a sequence: its first token, verification, rollback."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from vidspec.acceptance.base import Verdict
from vidspec.decoding.part_answers import check_draft, check_verdict
from vidspec.drafting.base import NO_DRAFT, Draft
from vidspec.engine.choices import read_back_tokens
from vidspec.engine.requests import Forward, Steps
from vidspec.engine.rows import PassResult, PrefillResult, Rows
from vidspec.engine.sampling import DrawRule, UniformNumbers

if TYPE_CHECKING:
    import torch

    from vidspec.acceptance.base import AcceptanceRule
    from vidspec.decoding.sequence import Sequence
    from vidspec.engine.forward import Engine
    from vidspec.engine.history import TextHistory
    from vidspec.engine.sampling import Sampling
    from vidspec.events.record import LossyRecord

__all__ = ["Target"]


class Target:
    """The target's side of one sequence: first token, verification, rollback. Its KV cache is always exact.

    Args:
        engine: the target model.
        prefill: result of the prompt's prefill.
        sampling: sampling parameters of its own tokens.
        rng: CPU generator.
        acceptance: the rule for drafted tokens; None if nothing is drafted.
        return_probs: True to keep its probabilities of the tokens.
        history: its text so far for penalties; grows with the text. None without penalties.

    Attributes:
        tapped: blocks whose inputs in verification passes a drafter reads.
        lossy: what a pruned target reads; None if it is not pruned.
        probabilities: its own, after penalties and before temperature and top-p, of the last tokens; empty without
            ``return_probs``.
    """

    probabilities: tuple[float, ...] = ()
    tapped: tuple[int, ...] = ()
    lossy: LossyRecord | None = None

    def __init__(
        self,
        engine: Engine,
        prefill: PrefillResult,
        sampling: Sampling,
        rng: torch.Generator,
        *,
        acceptance: AcceptanceRule | None = None,
        return_probs: bool = False,
        history: TextHistory | None = None,
    ) -> None:
        self.engine, self.prefill, self.sampling, self.acceptance = engine, prefill, sampling, acceptance
        self.rng, self._uniforms = rng, UniformNumbers(rng)
        self.return_probs = return_probs
        self.span = prefill.span
        self.history = history
        self._draft = NO_DRAFT
        self._last_token = -1
        self._base = self.span.length

    def first(self) -> int:
        """Choose the first token, from the prefill's last logits."""
        logits = self.prefill.logits[None]
        processor = self.history.changes_for_paths([()]) if self.history is not None else None
        (read,) = read_back_tokens(
            [Rows(self.span, draw=self._draw_rule(NO_DRAFT), processor=processor)], [PassResult(logits, logits)]
        )
        self._last_token = read.chosen[0]
        self._record_emitted((), [self._last_token], read.logits)
        return self._last_token

    def rows(self, draft: Draft) -> Rows:
        """Return the rows that verify a window: the last emitted token, then the drafted ones."""
        self._base, self._draft = self.span.length, draft
        tokens = [self._last_token, *draft.tokens]
        parents = None if draft.is_chain else [-1, *(parent + 1 for parent in draft.parents)]
        processor = self.history.changes_for_paths([(), *draft.paths]) if self.history is not None else None
        return Rows(self.span, tokens, parents, tapped=self.tapped, draw=self._draw_rule(draft), processor=processor)

    def step(self) -> Steps[PassResult]:
        """Decode one token plainly, and return its pass."""
        (passed,) = yield Forward(self.engine, [self.rows(NO_DRAFT)])
        self.commit((), passed.chosen[0], passed)
        return passed  # type: ignore[no-any-return]

    def _draw_rule(self, draft: Draft) -> DrawRule | None:
        """Return the rule for drawing tokens after a window: nodes at one depth share a number, as one is emitted."""
        if not self.sampling.temperature:
            return None
        ahead = self._uniforms.ahead(1 + max(draft.depths, default=0))
        return DrawRule(self.sampling, (ahead[0], *(ahead[depth] for depth in draft.depths)), draft.probs)

    def commit(self, path: Items[int], token: int, passed: PassResult) -> None:
        """Keep the drafted tokens at ``path`` of the verified window, drop the others from the cache.

        Args:
            path: indices of the accepted tokens.
            token: follows them and is read by the next pass.
            passed: the pass over the window.
        """
        if self._draft.is_chain or tuple(path) == tuple(range(len(path))):
            self.span.rollback(self._base + 1 + len(path))
        else:
            self.span.gather(self._base + 1, path)
        self._last_token = token
        if self.sampling.temperature or self.history is not None or self.return_probs:
            self._record_emitted(path, [*[self._draft.tokens[node] for node in path], token], passed.logits)

    def _record_emitted(self, path: Items[int], token_ids: list[int], logits: torch.Tensor) -> None:
        """Advance random numbers, penalties and probabilities by the emitted tokens."""
        self._uniforms.emitted(len(token_ids))
        if self.history is not None:
            self.history.add(token_ids)
        if self.return_probs:
            shares = logits[[0, *(node + 1 for node in path)]].float().softmax(-1)
            self.probabilities = tuple(shares[range(len(token_ids)), token_ids].tolist())


def verify(sequence: Sequence, draft: Draft, round: int = 0) -> Steps[tuple[Verdict, PassResult]]:
    """Verify a window with one pass and the sequence's rule; the target's cache follows the verdict.

    ``drafter.read`` takes the tokens of the verdict and the pass.

    Args:
        sequence: the clip, whose prompt has been read.
        draft: the window.
        round: number of the pass in the parallel schedule, for its trace; 0 in others.
    """
    target, trace, rule = sequence.target, sequence.trace, sequence.target.acceptance
    assert rule is not None
    check_draft(sequence, draft)
    trace.lap()
    (passed,) = yield Forward(target.engine, [target.rows(draft)])
    about = (("round", round), ("rows", len(draft.tokens) + 1)) if round else ()
    seconds = trace.lap("verify", about=about)
    verdict = rule(draft, passed, target.rng)
    check_verdict(sequence, verdict, draft)
    seconds += trace.lap("accept")
    target.commit(verdict.path, verdict.token, passed)
    verdict.draft, verdict.probabilities, verdict.seconds, verdict.round = draft, target.probabilities, seconds, round
    passed.path = verdict.path
    return verdict, passed
