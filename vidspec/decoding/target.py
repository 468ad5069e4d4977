"""The target's side of a sequence: its first token, verification, rollback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vidspec.drafting.base import Draft
from vidspec.engine.choices import read_back_tokens
from vidspec.engine.requests import Forward, Steps
from vidspec.engine.rows import PassResult, PrefillResult, Rows
from vidspec.engine.sampling import DrawRule, UniformNumbers

if TYPE_CHECKING:
    import torch

    from vidspec.engine.forward import Engine
    from vidspec.engine.penalties import PenaltyHistory
    from vidspec.engine.sampling import Sampling

__all__ = ["NOTHING", "Target"]

#: The empty draft of plain decoding.
NOTHING = Draft((), ())


class Target:
    """The target's side of one sequence: first token, verification, rollback. Its KV cache is always exact.

    Args:
        engine: the target model.
        prefill: result of the prompt's prefill.
        sampling: sampling parameters of its own tokens.
        rng: CPU generator.
        tapped: blocks whose inputs in verification passes a drafter reads.
        return_probs: True to keep its probabilities of the tokens.
        history: its text so far for penalties; grows with the text. None without penalties.

    Attributes:
        probabilities: its own, after penalties and before temperature and top-p, of the last tokens; empty without
            ``return_probs``.
    """

    probabilities: tuple[float, ...] = ()

    def __init__(
        self,
        engine: Engine,
        prefill: PrefillResult,
        sampling: Sampling,
        rng: torch.Generator,
        tapped: tuple[int, ...] = (),
        *,
        return_probs: bool = False,
        history: PenaltyHistory | None = None,
    ) -> None:
        self.engine, self.prefill, self.sampling, self.tapped = engine, prefill, sampling, tapped
        self._uniforms = UniformNumbers(rng)
        self.return_probs = return_probs
        self.span = prefill.span
        self.history = history
        self._draft = NOTHING
        self._logits: torch.Tensor | None = None  # logits of the last pass
        self._last_token = -1
        self._base = self.span.length

    def first(self) -> int:
        """Choose the first token, from the prefill's last logits."""
        logits = self.prefill.logits[None]
        processor = self.history.changes_for_paths([()]) if self.history is not None else None
        (read,) = read_back_tokens(
            [Rows(self.span, draw=self._draw_rule(NOTHING), processor=processor)], [PassResult(logits, logits)]
        )
        self._logits = read.logits if self.return_probs else None
        self._record_emitted((), read.chosen[0])
        return self._last_token

    def step(self) -> Steps[int]:
        """Decode one token plainly."""
        passed = yield from self.verify(NOTHING)
        self.commit((), passed.chosen[0])
        return self._last_token

    def verify(self, draft: Draft) -> Steps[PassResult]:
        """Run one pass over the last emitted token and a window after it: row 0, then a row per drafted token."""
        self._base, self._draft = self.span.length, draft
        tokens = [self._last_token, *draft.tokens]
        parents = None if draft.is_chain else [-1, *(parent + 1 for parent in draft.parents)]
        processor = self.history.changes_for_paths([(), *draft.paths]) if self.history is not None else None
        draw = self._draw_rule(draft)
        rows = Rows(self.span, tokens, parents, tapped=self.tapped, draw=draw, processor=processor)
        (passed,) = yield Forward(self.engine, [rows])
        if self.return_probs:
            self._logits = passed.logits
        return passed  # type: ignore[no-any-return]

    def _draw_rule(self, draft: Draft) -> DrawRule | None:
        """Return the rule for drawing tokens after a window: nodes at one depth share a number, as one is emitted."""
        if not self.sampling.temperature:
            return None
        ahead = self._uniforms.ahead(1 + max(draft.depths, default=0))
        return DrawRule(self.sampling, (ahead[0], *(ahead[depth] for depth in draft.depths)), draft.probs)

    def commit(self, path: Sequence[int], token: int) -> None:
        """Keep the drafted tokens at ``path`` of the verified window, drop the others from the cache.

        ``token`` follows them and is read by the next pass.
        """
        if tuple(path) == tuple(range(len(path))):
            self.span.rollback(self._base + 1 + len(path))
        else:
            self.span.gather(self._base + 1, path)
        self._record_emitted(path, token)

    def _record_emitted(self, path: Sequence[int], token: int) -> None:
        self._last_token = token
        self._uniforms.emitted(len(path) + 1)
        if self.history is None and self._logits is None:
            return
        ids = [*[self._draft.tokens[node] for node in path], token]
        if self.history is not None:
            self.history.add(ids)
        if self._logits is not None:
            shares = self._logits[[0, *(node + 1 for node in path)]].float().softmax(-1)
            self.probabilities, self._logits = tuple(shares[range(len(ids)), ids].tolist()), None
