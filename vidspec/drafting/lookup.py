"""Drafting by lookup: continuations of earlier occurrences of the text's last tokens, most frequent first. No torch.

A continuation's score is the probability that all of it is accepted: at each step its share of the occurrences, times
the recent acceptance of such shares after matches of that length. Tokens are proposed while their score is worth a row
of the target's pass: many after a long match, none after a weak one.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Protocol

from vidspec.drafting.base import Draft, FreeDrafter
from vidspec.drafting.memory import BREAK, IndexedText, Match, TextMemory, longest_matches
from vidspec.drafting.static_tree import parse_tree

if TYPE_CHECKING:
    from vidspec.draft_length.pace import WindowController
    from vidspec.draft_length.window import DraftWindow
    from vidspec.drafting.context import DraftContext
    from vidspec.engine.requests import Steps
    from vidspec.engine.rows import PassResult

#: Tokens of the longest proposal; the lowest score to propose; the same while the cost of rows is unknown.
LONGEST, LEAST, UNPRICED = 32, 0.02, 0.15
#: Prior acceptance after matches of 1, 2-3, 4-7, 8-15 and more tokens; its weight in tokens; fading per window.
PRIOR, PRIOR_TOKENS, FADE = (0.2, 0.4, 0.7, 0.9, 0.95), 8.0, 0.998


class MatchAcceptance:
    """Acceptance rate of the most frequent continuations by match length, over all clips."""

    def __init__(self) -> None:
        self._promised = [PRIOR_TOKENS] * len(PRIOR)
        self._kept = [PRIOR_TOKENS * share for share in PRIOR]

    def __call__(self, length: int) -> float:
        """Return the probability that the only continuation of a match of ``length`` tokens is right."""
        at = min(length.bit_length(), len(PRIOR)) - 1
        return min(0.99, self._kept[at] / self._promised[at])

    def update(self, length: int, share: float, right: bool) -> None:
        """Add a verified proposal, which held ``share`` of the continuations of a match of ``length``."""
        at = min(length.bit_length(), len(PRIOR)) - 1
        self._promised[at] = FADE * self._promised[at] + share
        self._kept[at] = FADE * self._kept[at] + right


class RowPrices(Protocol):
    """Source of row costs."""

    def row_prices(self, rows: int) -> Sequence[float]:
        """Return the cost of 0, 1, ... ``rows`` drafted rows, in tokens; empty until it is known."""
        ...


class LookupProposal(NamedTuple):
    """A proposal by lookup, the best scores first.

    Attributes:
        tokens, parents: a window.
        shares: by token, the share of the occurrences that it followed.
        length: of the match.
        gain: expected accepted tokens, less the cost of their rows in tokens.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    shares: tuple[float, ...]
    length: int
    gain: float


NOTHING = LookupProposal((), (), (), 0, 0.0)


class LookupDrafter(FreeDrafter):
    """Searches the clip's text and prompt, and the texts of a memory if there is one.

    Args:
        least: the shortest match, in tokens.
        most: the longest match that is compared.
    """

    trees = True
    paces = True

    def __init__(self, least: int = 1, most: int = 16) -> None:
        self.least, self.most = least, max(least, most)
        self.reliance = MatchAcceptance()
        self.memory: TextMemory | None = None
        self.prices: RowPrices | None = None
        self._turns: DraftWindow | None = None
        self._found = NOTHING

    def opened(self, clip: DraftContext) -> None:
        draft = clip.profile.draft
        self.start(clip.room, len(parse_tree(draft.tree)) if draft.topology == "tree" else None)

    def start(self, room: int, nodes: int | None = None, prices: RowPrices | None = None) -> None:
        """Start a text.

        Args:
            room: expected number of tokens.
            nodes: the most nodes of a proposed tree; chains if None.
            prices: source of row costs.
        """
        self.nodes, self.prices = nodes, prices
        self._own = IndexedText(len(self.prompt) + room, self.least, self.most)
        self._own.add([*self.prompt, BREAK])

    def set_pace(self, pace: WindowController, window: DraftWindow) -> None:
        self.prices, self._turns = pace.prices, window

    def guess(self, gamma: int) -> Sequence[int]:
        return self.proposal(gamma).tokens

    def accept(self, token_ids: Sequence[int]) -> None:
        self._own.add(token_ids)

    def finish(self, token_ids: Sequence[int]) -> None:
        if self.memory is not None:
            self.memory.add(token_ids)

    def propose(self, gamma: int) -> Steps[Draft]:
        yield from ()
        self._found = self.proposal(gamma)
        return Draft(self._found.tokens, self._found.parents)

    def read(self, tokens: Sequence[int], passed: PassResult) -> None:
        if self._turns is not None:
            self._turns.update(0, len(passed.path))  # the model drafted nothing
        self.judge(self._found, passed.path)
        self._found = NOTHING
        self.add(tokens)

    def judge(self, found: LookupProposal, path: Sequence[int]) -> None:
        """Update the reliance on matches by a verified proposal, whose accepted nodes are ``path``."""
        node, depth = -1, 0
        for following in [*path, None]:
            share = sum(s for s, parent in zip(found.shares, found.parents, strict=True) if parent == node)
            if share:
                self.reliance.update(found.length + depth, share, following is not None)
            if following is not None:
                node, depth = following, depth + 1

    def proposal(self, gamma: int, after: Sequence[int] = (), reach: float = 1.0, rows: int = 0) -> LookupProposal:
        """Return the proposal, at most ``gamma`` deep.

        Args:
            gamma: largest distance of a token from the last one.
            after: drafted tokens, which it continues.
            reach: probability that its first token is reached, which is a factor of all scores.
            rows: of the window that it joins.
        """
        depth = min(gamma, LONGEST)
        most = depth if self.nodes is None else self.nodes - rows
        if depth <= 0 or most <= 0:
            return NOTHING
        end = self._own.tokens[-self.most :]
        end.extend(after)
        end = end[-self.most :]
        found = self._own.find(end)
        if self.memory is not None:
            found = longest_matches([*found, *self.memory.find(end)])
        if not found:
            return NOTHING
        prices = self.prices.row_prices(rows + most) if self.prices is not None else []
        prices = [price - prices[rows] for price in prices[rows:]]
        grown = self._grow(found, depth, most, prices, reach)
        self.declined += not grown.tokens
        return grown

    def _grow(
        self, matches: list[Match], depth: int, most: int, prices: Sequence[float], reach: float
    ) -> LookupProposal:
        """Return continuations of ``matches``, the best first: as many as are worth their rows.

        Args:
            matches: of one length.
            depth: largest distance of a token from the text's last one.
            most: largest number of tokens.
            prices: the cost of rows in tokens, by number of proposed tokens; empty if unknown.
            reach: probability that the first token is reached.
        """
        length, number = matches[0].length, count()
        heap: list[tuple[float, int, int, int, int, float, list[tuple[array[int], int]]]] = []

        def offer(parent: int, at: int, score: float, places: list[tuple[array[int], int]]) -> None:
            following: dict[int, list[tuple[array[int], int]]] = {}
            for tokens, place in places:
                if place < len(tokens) and tokens[place] != BREAK:
                    following.setdefault(tokens[place], []).append((tokens, place + 1))
            known = sum(map(len, following.values()))
            trust = self.reliance(length + at)
            ranked = sorted(following.items(), key=lambda one: -len(one[1]))  # ties: the newest first
            for token, group in ranked if self.nodes is not None else ranked[:1]:
                share = len(group) / known
                heapq.heappush(heap, (-score * trust * share, next(number), parent, at + 1, token, share, group))

        offer(-1, 0, reach, [(match.tokens, match.at) for match in matches])
        tokens: list[int] = []
        parents: list[int] = []
        shares: list[float] = []
        gain = best = 0.0
        pays = 0
        while heap and len(tokens) < most:
            below, _, parent, at, token, share, places = heapq.heappop(heap)
            if -below < (LEAST if prices else UNPRICED):
                break
            tokens.append(token)
            parents.append(parent)
            shares.append(share)
            gain -= below
            net = gain - prices[len(tokens)] if prices else gain
            if net > best:
                best, pays = net, len(tokens)
            if at < depth:
                offer(len(tokens) - 1, at, -below, places)
        return LookupProposal(tuple(tokens[:pays]), tuple(parents[:pays]), tuple(shares[:pays]), length, best)
