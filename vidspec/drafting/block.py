"""Windows of a block head: one pass fills all masked positions after the last emitted token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from vidspec.drafting.base import NO_DRAFT, Draft, Drafter
from vidspec.engine.forward import Engine
from vidspec.engine.graph_step import MOST
from vidspec.engine.requests import Encode, Forward, Steps
from vidspec.engine.rows import ContextRows, PassResult, Rows
from vidspec.engine.sampling import DrawRule, Sampling, UniformNumbers, choose_tokens, on_device
from vidspec.engine.slab import KVSpan

if TYPE_CHECKING:
    from vidspec.draft_length.blocks import BlockController
    from vidspec.draft_length.pace import WindowController
    from vidspec.draft_length.window import DraftWindow
    from vidspec.models.dflash import BlockHead

__all__ = ["BlockDrafter"]


class BlockDrafter(Drafter):
    """Chain of the tokens that a head gives to the masked positions of a block, each without the others.

    The head's sequence holds one entry for each row of the target but those of rejected tokens. Entries of a draft's
    own rows are dropped after its pass. If windows follow measured times, tokens are the likeliest ones, and as many
    are proposed as are worth their verification.

    Args:
        engine: the head's engine.
        span: the context of the prompt.
        sampling: how tokens are chosen; sampled windows carry the distribution of each position.
        rng: CPU generator.
    """

    paces = True
    origin = "block"

    def __init__(self, engine: Engine[BlockHead], span: KVSpan, sampling: Sampling, rng: torch.Generator) -> None:
        self.engine, self.span, self.sampling = engine, span, sampling
        self.spans, self.tapped = (span,), engine.model.blocks
        self._uniforms = UniformNumbers(rng)
        self._last = -1
        self._seen: torch.Tensor | None = None  # the target's states in the pass over the last window
        self._unread: list[torch.Tensor] = []  # the target's states of rows that have no entry yet
        self._draft = NO_DRAFT
        self._probabilities: Sequence[float] = ()
        self._rows = 0  # of the last pass
        self._blocks: BlockController | None = None
        self._window: DraftWindow | None = None

    def set_pace(self, pace: WindowController, window: DraftWindow) -> None:
        self._blocks, self._window = pace.blocks, window

    def begin(self, token: int) -> None:
        self._last = token

    def propose(self, gamma: int) -> Steps[Draft]:
        head = self.engine.model
        gamma = min(gamma, head.size - 1)
        if gamma < 1 or (self._blocks is not None and self._blocks.rest()):
            self.declined += gamma > 0
            return NO_DRAFT
        if sum(map(len, self._unread)) > MOST:  # after a rest; its time must not count as that of a block
            yield Encode(partial(self.engine.read_context, self.span, self._take_context()), "draft")
        # Rows that see later ones were trained with whole blocks.
        self._rows = head.size if head.decoder.both_ways else gamma + 1
        passed = yield from self._run()
        tokens, probs = self._choose(passed, gamma)
        if self._blocks is not None:
            count = self._blocks.window(self._probabilities)
            tokens, self._probabilities = tokens[:count], self._probabilities[:count]
            self.declined += not tokens
        self._draft = Draft.chain(tokens, probs)
        return self._draft

    def _run(self) -> Steps[PassResult]:
        """Run the block's pass, which first makes entries of the rows that the target has read since."""
        head, context = self.engine.model, self._take_context()
        entries, draw, masked = self.span.length + context.row_count, None, self._rows - 1
        if self.history is None and not self.sampling.greedy:
            draw = DrawRule(self.sampling, tuple(self._uniforms.ahead(masked)), keeps_probs=True)
        top = int(self._blocks is not None)
        rows = Rows(self.span, [self._last, *[head.mask] * masked], draw=draw, top=top, context=context)
        (passed,) = yield Forward(self.engine, [rows], "draft")
        self.span.rollback(entries)
        self.forwards += 1
        return passed  # type: ignore[no-any-return]

    def _take_context(self) -> ContextRows:
        context, self._unread = ContextRows(self._unread), []
        return context

    def _choose(self, passed: PassResult, gamma: int) -> tuple[list[int], torch.Tensor | None]:
        """Return the tokens of the first ``gamma`` masked positions, and the distributions they were drawn from."""
        if self.history is not None:
            return self._choose_in_turn(passed.logits[1 : gamma + 1])
        self._probabilities = [probabilities[0] for _, probabilities in passed.top[1 : gamma + 1]]
        if self.sampling.greedy:
            return list(passed.likeliest[1 : gamma + 1]), None
        self._uniforms.emitted(gamma)
        return list(passed.chosen[1 : gamma + 1]), None if passed.probs is None else passed.probs[:gamma]

    def _choose_in_turn(self, logits: torch.Tensor) -> tuple[list[int], torch.Tensor | None]:
        """Return the tokens of positions (gamma, V), each by penalties and grammar after those before it."""
        assert self.history is not None
        tokens, probs, probabilities = list[int](), list[torch.Tensor](), list[float]()
        uniforms = self._uniforms.ahead(len(logits))
        for row, uniform in zip(logits.split(1), uniforms, strict=True):
            changed = self.history.changes_for_paths([tokens])(row)
            if self.sampling.greedy:
                probability, token = changed.softmax(-1).max(-1)
                probabilities.append(float(probability))
            else:
                probs.append(self.sampling.distribution(changed))
                number = on_device([uniform], changed.device)
                token = choose_tokens(probs[-1], number, torch.zeros(1, dtype=torch.long, device=changed.device), None)
            tokens.append(int(token))
        self._probabilities = probabilities
        if not probs:
            return tokens, None
        self._uniforms.emitted(len(tokens))
        return tokens, torch.cat(probs)

    def observe_states(self, states: torch.Tensor) -> None:
        self._seen = states

    def commit(self, path: Sequence[int], token: int) -> None:
        if self._seen is None:
            raise ValueError("the target's states of the last window are needed")
        self._unread.append(self._seen[: len(path) + 1])
        if self._window is not None:
            self._window.update(len(self._draft.tokens), len(path))
        if self._blocks is not None and self._draft.tokens:
            self._blocks.add_block(self._rows, self._probabilities, len(path))
        self._last, self._seen, self._draft = token, None, NO_DRAFT
