"""Lookup in earlier text beside a drafter with a model.

They know different things: a model what is likely, lookup what has been written before. A round's window is that of
lookup alone where it promises more, else the model's, which lookup continues where the model's ends; in trees lookup
also stands beside it from the first token on. All is weighed by expected accepted tokens less the cost of rows and of
draft passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

from pydantic import Field, JsonValue

from vidspec.drafting.base import NO_DRAFT, Draft, Drafter, DrafterKind, drafters
from vidspec.drafting.drafters.suffix import MemoryPath, SuffixDraft
from vidspec.drafting.lookup import LONGEST, LookupDrafter, LookupProposal
from vidspec.errors import ProfileError, option
from vidspec.registry import OptionConflict, options_of

if TYPE_CHECKING:
    from vidspec.config.schema import Profile
    from vidspec.draft_length.costs import TokenPrices
    from vidspec.draft_length.pace import WindowController
    from vidspec.draft_length.window import DraftWindow
    from vidspec.drafting.context import DraftContext
    from vidspec.engine.requests import Steps
    from vidspec.engine.rows import PassResult
    from vidspec.models.video_language_model import VideoLanguageModel

#: Weight of earlier windows of a drafter that chooses their length itself, and windows after which its gain is known.
RECENT, KNOWN = 0.9, 3


class _LookedUp(NamedTuple):
    """A proposal of lookup within a window.

    Attributes:
        found: the proposal.
        base: node of the window that it follows; -1 is the last emitted token.
        nodes: of the window, by node of the proposal.
    """

    found: LookupProposal
    base: int
    nodes: list[int]

    def accepted(self, path: Sequence[int]) -> list[int] | None:
        """Return the proposal's nodes on a path of the window; None if the path does not reach its base."""
        if self.base >= 0 and self.base not in path:
            return None
        place = {node: own for own, node in enumerate(self.nodes)}
        behind = path[path.index(self.base) + 1 :] if self.base >= 0 else path
        found = list[int]()
        for node in behind:
            if node not in place:
                break
            found.append(place[node])
        return found


class HybridDrafter(Drafter):
    """Windows of a drafter with a model, of lookup, or of both.

    Lookup is rated by its scores, the model by its acceptance rate, both with the measured times of rows and of draft
    passes. The model reads every token, whoever drafted it.

    Args:
        model: drafts a greedy chain.
        lookup: in trees if it has a number of nodes.
        gamma: the model's window; None for the one that measured times suggest.
        given: True if nothing follows measured times: rows and passes have no price.
    """

    paces = True
    prices: TokenPrices
    window: DraftWindow

    def __init__(self, model: Drafter, lookup: LookupDrafter, gamma: int | None, given: bool = False) -> None:
        self.model, self.lookup, self.gamma, self.given = model, lookup, gamma, given
        self.spans, self.tapped, self.origin = model.spans, model.tapped, model.origin
        self.forwards = model.forwards
        self._chooses = False  # the model, the length of its windows
        self._drafted = NO_DRAFT  # by the model
        self._looked_up = list[_LookedUp]()
        self._length = self._accepted = self._weight = 0.0  # recent sums over the model's windows

    def set_pace(self, pace: WindowController, window: DraftWindow) -> None:
        self.prices, self.window = pace.prices, window
        self._chooses = self.model.paces and self.gamma is None
        if self._chooses:
            self.model.set_pace(pace, window)
        if not self.given:
            self.lookup.prices = pace.prices

    def begin(self, token: int) -> None:
        self.model.history = self.history
        self.model.begin(token)
        self.lookup.begin(token)

    def propose(self, gamma: int) -> Steps[Draft]:
        self._drafted, self._looked_up = NO_DRAFT, []
        found = self.lookup.proposal(gamma)
        wanted = gamma if self._chooses else self.window.gamma if self.gamma is None else self.gamma
        window = min(wanted, gamma)
        if not found.tokens or found.gain < self._expected_gain(window):
            self._drafted = yield from self.model.propose(window)
            self.forwards = self.model.forwards
        draft = self._add(self._drafted, found, -1) if not self._drafted.tokens else self._add_lookup(gamma)
        self.declined += gamma > 0 and not draft.tokens
        return draft

    def _expected_gain(self, window: int) -> float:
        """Return the accepted tokens expected of the model's window, less the cost of its rows and passes."""
        from vidspec.draft_length.window import chain_tokens

        if self._chooses:
            if self._weight < KNOWN:
                return float("inf")
            window, accepted = round(self._length / self._weight), self._accepted / self._weight
        else:
            accepted = chain_tokens(self.window.beta, window) - 1
        if self.given or not window:
            return accepted
        rows = self.prices.row_prices(window) or [0.0] * (window + 1)
        return accepted - rows[window] - self.model.cost(window, self.prices)

    def _add_lookup(self, gamma: int) -> Draft:
        """Return the model's window with what lookup finds behind it, and beside it in trees."""
        drafted, beta = self._drafted, self.window.beta
        count = len(drafted.tokens)
        tail = self.lookup.proposal(gamma - count, drafted.tokens, beta**count, count)
        draft = self._add(drafted, tail, count - 1)
        if self.lookup.nodes is None:
            return draft
        beside = self.lookup.proposal(gamma, reach=1 - beta, rows=len(draft.tokens))  # right where the model is wrong
        return self._add(draft, beside, -1)

    def _add(self, draft: Draft, found: LookupProposal, base: int) -> Draft:
        """Return a window with a proposal after its node ``base``; what both have is there once."""
        if not found.tokens:
            return draft
        tokens, parents, nodes = list(draft.tokens), list(draft.parents), list[int]()
        known = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
        for token, parent in zip(found.tokens, found.parents, strict=True):
            above = nodes[parent] if parent >= 0 else base
            if (above, token) not in known:
                known[above, token] = len(tokens)
                tokens.append(token)
                parents.append(above)
            nodes.append(known[above, token])
        self._looked_up.append(_LookedUp(found, base, nodes))
        return replace(draft, tokens=tuple(tokens), parents=tuple(parents))

    def read(self, tokens: Sequence[int], passed: PassResult) -> None:
        for one in self._looked_up:
            if (path := one.accepted(passed.path)) is not None:
                self.lookup.judge(one.found, path)
        self.lookup.add(tokens)
        drafted = len(self._drafted.tokens)
        accepted = sum(node < drafted for node in passed.path)
        if not self._chooses:
            self.window.update(drafted, accepted, len(passed.path) - accepted)
        elif drafted:
            sums = (self._length, drafted), (self._accepted, accepted), (self._weight, 1)
            self._length, self._accepted, self._weight = (RECENT * before + now for before, now in sums)
        self._drafted, self._looked_up = NO_DRAFT, []
        self.model.read(tokens, passed)

    def finish(self, token_ids: Sequence[int]) -> None:
        self.lookup.finish(token_ids)


@drafters.register("hybrid")
class HybridDraft(DrafterKind):
    """``suffix`` and a drafter with a model: whichever is expected to be faster in a round, or both in one window.

    In trees (``draft.topology``) the model drafts a chain, and lookup its branches.

    Args:
        of: name of the drafter with a model.
        settings: its options.
        window: tokens that it drafts in a round, whatever passes cost; null follows ``draft.gamma``, which limits the
            whole window.
        least, most, capacity, memory: options of ``suffix``.
    """

    draws = False
    paces = True
    trees = True

    def __init__(
        self,
        of: str = "model",
        settings: Mapping[str, JsonValue] | None = None,
        window: Annotated[int | None, Field(ge=1, le=LONGEST)] = None,
        least: Annotated[int, Field(ge=1, le=16)] = 1,
        most: Annotated[int, Field(ge=1, le=256)] = 16,
        capacity: Annotated[int, Field(ge=1000, le=100_000_000)] = 1_000_000,
        memory: MemoryPath = None,
    ) -> None:
        made = drafters.get(of)
        if made is HybridDraft:
            raise ProfileError(
                f"{option('draft.options.of')}: hybrid cannot be combined with itself",
                hint=f"set {option('draft.options.of', 'model')}",
            )
        taken = options_of(made).model_validate(settings or {}).model_dump(exclude_unset=True)
        self.inner = made(**taken)
        if self.inner.model is None:
            raise ProfileError(
                f"{option('draft.options.of')}: {of} drafts without a model",
                hint=f"set {option('draft.options.of', 'model')}",
            )
        self.needs, self.model, self.sees = self.inner.needs, self.inner.model, self.inner.sees
        self.head = self.inner.head
        self.contexts, self.gathers = self.inner.contexts, self.inner.gathers
        self.window, self.lookup = window, SuffixDraft(least, most, capacity, memory)

    def check(self, profile: Profile) -> Iterable[OptionConflict]:
        yield from self.inner.check(profile)
        if profile.draft.topology == "adaptive":
            reason = "adaptive trees grow by the probabilities of one model"
            yield OptionConflict("draft.topology", reason, option("draft.topology", "tree"))

    def prepare(self, target: VideoLanguageModel) -> None:
        self.inner.prepare(target)
        self.lookup.prepare(target)
        self.note = self.lookup.note

    def forget(self) -> None:
        self.inner.forget()
        self.lookup.forget()

    def close(self) -> None:
        self.inner.close()
        self.lookup.close()

    def open(self, clip: DraftContext) -> Steps[Drafter]:
        profile = clip.profile
        chains = profile.model_copy(update={"draft": profile.draft.model_copy(update={"topology": "chain"})})
        model = yield from self.inner.open(replace(clip, profile=chains))
        lookup = cast(LookupDrafter, (yield from self.lookup.open(clip)))
        gamma = profile.draft.gamma
        return HybridDrafter(
            model, lookup, self.window or (None if gamma == "auto" else gamma), given=self.window is not None
        )
