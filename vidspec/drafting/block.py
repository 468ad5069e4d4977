"""Windows of a block head: one pass fills all masked positions after the last emitted token.

A head with a selector chooses the tokens from left to right, among the likeliest of each position, by its logits and by
how well each token follows the one before it. One with a Markov head adds a bias by the token before to the logits of a
position. q of a position is then that of the scores after the token chosen before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from vidspec.draft_length.trees import WIDEST
from vidspec.drafting.base import NO_DRAFT, Draft, Drafter
from vidspec.engine.forward import Engine
from vidspec.engine.graphs.step import MOST
from vidspec.engine.requests import Encode, Forward, Steps
from vidspec.engine.rows import ContextRows, PassResult, Rows
from vidspec.engine.sampling import DrawRule, Sampling, UniformNumbers, choose_tokens, on_device
from vidspec.engine.slab import KVSpan

if TYPE_CHECKING:
    from vidspec.draft_length.blocks import BlockController
    from vidspec.draft_length.costs import TokenPrices
    from vidspec.draft_length.pace import WindowController
    from vidspec.draft_length.window import DraftWindow
    from vidspec.models.dflash import BlockHead


class _Pairs(NamedTuple):
    """Scores of a selector: of each candidate of a position after each of the position before it.

    Attributes:
        ids: (n, k) candidates of each position.
        scores: (n, k, k) after each candidate of the position before, all of which are the last token at the first.
    """

    ids: torch.Tensor
    scores: torch.Tensor

    @classmethod
    def of(cls, head: BlockHead, last: int, logits: torch.Tensor, hidden: torch.Tensor) -> _Pairs:
        """Score the candidates of positions with logits (n, V) and states (n, hidden) after the token ``last``."""
        unary, ids = logits.topk(head.candidates, dim=-1)
        before = torch.cat([ids.new_full((1, head.candidates), last), ids[:-1]])
        return cls(ids, (unary[:, None] + head.decoder.pair_scores(before, ids, hidden)).float())

    def likeliest(self) -> tuple[list[int], list[float]]:
        """Return the likeliest token of each position after that before it, and its probability."""
        likely, next_of = self.scores.softmax(-1).max(-1)
        found = torch.stack([next_of.to(likely), likely, self.ids.to(likely)]).tolist()  # waits for the device once
        place, tokens, probabilities = 0, list[int](), list[float]()
        for following, likelihoods, ids in zip(*found, strict=True):
            probabilities.append(likelihoods[place])
            place = int(following[place])
            tokens.append(int(ids[place]))
        return tokens, probabilities

    def likely(self, most: int) -> tuple[list[list[int]], list[list[list[tuple[int, float]]]]]:
        """Return the candidates of each position, and after each of the position before the likeliest of them.

        These are at most ``most`` places of candidates with their probabilities, the likeliest first.
        """
        likely, next_of = self.scores.softmax(-1).topk(min(most, self.scores.shape[-1]))
        every = torch.cat([next_of.to(likely), likely], -1).flatten(1)
        count, width = likely.shape[-1], self.ids.shape[1]
        ids, following = list[list[int]](), list[list[list[tuple[int, float]]]]()
        for row in torch.cat([self.ids.to(likely), every], 1).tolist():  # waits for the device once
            ids.append([int(token) for token in row[:width]])
            after = [row[at : at + 2 * count] for at in range(width, len(row), 2 * count)]
            following.append(
                [[(int(at), share) for at, share in zip(one[:count], one[count:], strict=True)] for one in after]
            )
        return ids, following

    def drawn(
        self, sampling: Sampling, uniforms: Sequence[float], logits: torch.Tensor
    ) -> tuple[list[int], torch.Tensor]:
        """Return a token of each position, drawn after that before it, and the distributions (n, V) of the draws."""
        count, width = self.ids.shape
        shares = sampling.distribution(self.scores.flatten(0, 1))
        numbers = on_device(uniforms, shares.device).repeat_interleave(width)
        next_of = choose_tokens(shares, numbers, torch.zeros_like(numbers, dtype=torch.long), None)
        path, place = list[int](), 0
        for following in next_of.view(count, width).tolist():
            place = following[place]
            path.append(place)
        chosen = torch.tensor(path, device=self.ids.device)
        # All rows of the first position are equal, so that any may stand for it.
        of_path = shares.view_as(self.scores)[torch.arange(count, device=chosen.device), chosen.roll(1)]
        return self.ids.gather(1, chosen[:, None])[:, 0].tolist(), self.spread(of_path, logits, 0.0)

    def spread(self, values: torch.Tensor, like: torch.Tensor, rest: float) -> torch.Tensor:
        """Return (n, V) with the candidates' values (n, k), and ``rest`` for all other tokens."""
        return torch.full_like(like, rest, dtype=values.dtype).scatter_(1, self.ids, values)


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
        tree: True to propose trees of all positions' candidates where windows follow measured times. Chains are
            proposed under penalties and grammars, and by heads with a Markov head.
    """

    paces = True
    origin = "block"

    def __init__(
        self,
        engine: Engine[BlockHead],
        span: KVSpan,
        sampling: Sampling,
        rng: torch.Generator,
        *,
        tree: bool = False,
    ) -> None:
        self.engine, self.span, self.sampling, self._tree = engine, span, sampling, tree
        self.spans, self.tapped = (span,), engine.model.blocks
        self._uniforms = UniformNumbers(rng)
        self._last = -1
        self._unread: list[torch.Tensor] = []  # the target's states of rows that have no entry yet
        self._draft = NO_DRAFT
        self._probabilities: Sequence[float] = ()
        self._rows = 0  # of this round's pass
        self._blocks: BlockController | None = None
        self._window: DraftWindow | None = None

    def set_pace(self, pace: WindowController, window: DraftWindow) -> None:
        self._blocks, self._window = pace.blocks, window
        self._blocks.begin_clip()

    def begin(self, token: int) -> None:
        self._last = token

    def propose(self, gamma: int) -> Steps[Draft]:
        head = self.engine.model
        gamma = min(gamma, head.most)
        if gamma < 1 or (self._blocks is not None and self._blocks.rest()):
            self.declined += gamma > 0
            return NO_DRAFT
        if sum(map(len, self._unread)) > MOST:  # after a rest; its time must not count as that of a block
            yield Encode(partial(self.engine.read_context, self.span, self._take_context()), "draft")
        # Rows that see later ones were trained with whole blocks, and convolutions count rows from a block's first.
        self._rows = head.size if head.whole else gamma + head.first
        passed = yield from self._run()
        if self._grows():
            self._draft = self._grow(passed, gamma)
        else:
            tokens, probs = self._choose(passed, gamma)
            if self._blocks is not None:
                count = self._blocks.window(self._probabilities)
                tokens, self._probabilities = tokens[:count], self._probabilities[:count]
            self._draft = Draft.chain(tokens, probs)
        self.declined += not self._draft.tokens
        return self._draft

    def cost(self, gamma: int, prices: TokenPrices) -> float:
        head = self.engine.model
        return prices.of_pass("draft", head.size if head.whole else gamma + head.first)

    def _run(self) -> Steps[PassResult]:
        """Run the block's pass, which first makes entries of the rows that the target has read since."""
        head, context = self.engine.model, self._take_context()
        entries, draw, masked = self.span.length + context.row_count, None, self._rows - 1
        chosen_here = self.history is not None or head.in_turn
        if not chosen_here and not self.sampling.greedy:
            drafted = self._rows - head.first
            draw = DrawRule(self.sampling, tuple(self._uniforms.ahead(drafted)), keeps_probs=True)
        top = 0 if self._blocks is None or head.candidates else WIDEST if self._grows() else 1
        rows = Rows(self.span, [self._last, *[head.mask] * masked], draw=draw, top=top, context=context)
        (passed,) = yield Forward(self.engine, [rows], "draft")
        self.span.rollback(entries)
        self.forwards += 1
        return passed  # type: ignore[no-any-return]

    def _grows(self) -> bool:
        """Return True if windows are trees: what a token follows must not change more than a selector's scores."""
        return self._tree and self._blocks is not None and self.history is None and not self.engine.model.markov

    def _grow(self, passed: PassResult, gamma: int) -> Draft:
        """Return the tree of the first ``gamma`` drafted positions that is worth its rows."""
        assert self._blocks is not None
        head = self.engine.model
        drafted = slice(head.first, head.first + gamma)
        if head.candidates:
            ids, following = _Pairs.of(head, self._last, passed.logits[drafted], passed.hidden[drafted]).likely(WIDEST)
        else:
            ids = [[*tokens] for tokens, _ in passed.top[drafted]]
            following = [[list(enumerate(shares))] * WIDEST for _, shares in passed.top[drafted]]
        nodes = self._blocks.tree(lambda position, candidate: following[position][candidate], gamma)
        self._probabilities = [node.probability for node in nodes]
        tokens = tuple(ids[node.position][node.candidate] for node in nodes)
        return Draft(tokens, tuple(node.parent for node in nodes))

    def _take_context(self) -> ContextRows:
        context, self._unread = ContextRows(self._unread), []
        return context

    def _choose(self, passed: PassResult, gamma: int) -> tuple[list[int], torch.Tensor | None]:
        """Return the tokens of the first ``gamma`` drafted positions, and the distributions they were drawn from.

        The probabilities by which a window is cut must not depend on what is drawn: they are those of the likeliest
        tokens, each after the likeliest before it.
        """
        head = self.engine.model
        drafted = slice(head.first, head.first + gamma)
        logits, hidden = passed.logits[drafted], passed.hidden[drafted]
        lead = passed.hidden[: head.first * head.recurrent]
        if head.markov or (self.history is not None and self.sampling.greedy):
            return self._choose_in_turn(logits, hidden, lead)
        if head.candidates:
            pairs = _Pairs.of(head, self._last, logits, hidden)
            likeliest, self._probabilities = pairs.likeliest()
        else:
            pairs, likeliest = None, list(passed.likeliest[drafted])
            self._probabilities = [probabilities[0] for _, probabilities in passed.top[drafted]]
            if self._blocks is not None and head.confident:
                self._probabilities = head.decoder.confidences(hidden).tolist()
        if self.history is not None:
            return self._choose_in_turn(logits, hidden, lead)
        if self.sampling.greedy:
            return likeliest, None
        uniforms = self._uniforms.ahead(gamma)
        self._uniforms.emitted(gamma)
        if pairs is not None:
            return pairs.drawn(self.sampling, uniforms, logits)
        return list(passed.chosen[drafted]), None if passed.probs is None else passed.probs[:gamma]

    def _choose_in_turn(
        self, logits: torch.Tensor, hidden: torch.Tensor, lead: torch.Tensor
    ) -> tuple[list[int], torch.Tensor | None]:
        """Return the tokens of positions (gamma, V), each by penalties, grammar and the head after those before it.

        A recurrent Markov head begins with the row of the last emitted token, ``lead`` if that row does not draft. The
        probabilities are the head's confidences, where it has any. Without penalties and grammar the device is waited
        for once.
        """
        head, decoder = self.engine.model, self.engine.model.decoder
        tokens, probs, likelihoods = list[int](), list[torch.Tensor](), list[torch.Tensor]()
        before = torch.tensor([self._last], device=logits.device)
        memory = embedding = None
        for state in lead.split(1) if len(lead) else ():
            _, _, memory = decoder.markov_step(before, state)
        chosen = list[torch.Tensor]()
        uniforms = on_device([] if self.sampling.greedy else self._uniforms.ahead(len(logits)), logits.device)
        for at, (row, state) in enumerate(zip(logits.split(1), hidden.split(1), strict=True)):
            changed, likelihood = row, None
            if head.markov:
                bias, embedding, memory = decoder.markov_step(before, state, memory)
                changed = changed + bias[:, : changed.shape[1]]  # without the target's padding
            if head.confident:
                likelihood = decoder.confidences(state, embedding)
            if self.history is not None:
                changed = self.history.changes_for_paths([tokens])(changed)
            if head.candidates:
                pairs = _Pairs.of(head, int(before), changed, state)
                changed = pairs.spread(pairs.scores[:, 0], changed, float("-inf"))
            if self.sampling.greedy:
                likely, before = changed.softmax(-1).max(-1)
                likelihoods.append(likely if likelihood is None else likelihood)
            else:
                probs.append(self.sampling.distribution(changed))
                before = choose_tokens(probs[-1], uniforms[at : at + 1], torch.zeros_like(before), None)
            chosen.append(before)
            if self.history is not None:
                tokens.append(int(before))
        tokens = torch.cat(chosen).tolist()
        if not probs:
            self._probabilities = torch.cat(likelihoods).tolist()
            return tokens, None
        self._uniforms.emitted(len(tokens))
        return tokens, torch.cat(probs)

    def read(self, tokens: Sequence[int], passed: PassResult) -> None:
        if passed.tapped is None:
            raise ValueError("the target's states of the last window are needed")
        rows, drafted = passed.emitted_rows, len(self._draft.tokens)
        is_chain = rows[-1] == len(rows) - 1
        self._unread.append(passed.tapped[: len(rows)] if is_chain else passed.tapped[list(rows)])
        accepted = sum(node < drafted for node in passed.path)
        if self._window is not None:
            self._window.update(drafted, accepted, len(passed.path) - accepted)
        if self._blocks is not None and self._rows:
            for node, right in zip((-1, *passed.path), tokens, strict=True):
                for child in self._draft.children(node):
                    self._blocks.calibration.update(self._probabilities[child], self._draft.tokens[child] == right)
            self._blocks.add_block(self._rows, drafted, accepted)
        self._last, self._draft, self._rows = tokens[-1], NO_DRAFT, 0
