"""Drafting by a model, or by lookup in earlier text when that is expected to be faster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field

from vidspec.drafting.base import NO_DRAFT, Draft, Drafter, DrafterKind, drafters
from vidspec.drafting.drafters.suffix import MemoryPath, SuffixDraft
from vidspec.drafting.lookup import LookupDrafter
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


class HybridDrafter(Drafter):
    """Proposes, per round, by model or lookup: by expected accepted tokens less the cost of passes in tokens.

    The lookup is rated by its scores, the model by its acceptance rate, both with the measured times of rows and of
    draft passes. Before it drafts again, the model reads the tokens that it did not draft.

    Args:
        model: drafter of a greedy chain.
        lookup: drafter by lookup.
        gamma: the model's window; None for the adaptive one.
    """

    paces = True
    prices: TokenPrices
    window: DraftWindow

    def __init__(self, model: Drafter, lookup: LookupDrafter, gamma: int | None) -> None:
        self.model, self.lookup, self.gamma = model, lookup, gamma
        self._drafted = NO_DRAFT  # by the model
        self._looked_up = False
        self.spans, self.tapped = model.spans, model.tapped
        self.forwards = model.forwards

    def set_pace(self, pace: WindowController, window: DraftWindow) -> None:
        self.prices, self.window = pace.prices, window
        self.lookup.set_pace(pace, window)

    def begin(self, token: int) -> None:
        self.model.history = self.history
        self.model.begin(token)
        self.lookup.begin(token)

    def propose(self, gamma: int) -> Steps[Draft]:
        from vidspec.draft_length.window import chain_tokens

        found = self.lookup.proposal(gamma)
        window = min(self.window.gamma if self.gamma is None else self.gamma, gamma)
        rows = self.prices.row_prices(window) or [0.0] * (window + 1)
        spent = rows[window] + window * self.prices.of_pass("draft", 1)
        gain = chain_tokens(self.window.beta, window) - 1 - spent
        self._looked_up = bool(found.tokens) and found.gain >= gain
        if self._looked_up:
            return self.lookup.proposed(found)
        self.declined += gamma > 0 and not window
        self._drafted = yield from self.model.propose(window)
        self.forwards = self.model.forwards
        return self._drafted

    def read(self, tokens: Sequence[int], passed: PassResult) -> None:
        if self._looked_up:
            self.lookup.read(tokens, passed)
        else:
            self.window.update(len(self._drafted.tokens), len(passed.path))
            self.lookup.add(tokens)
        self._looked_up, self._drafted = False, NO_DRAFT
        self.model.read(tokens, passed)

    def finish(self, token_ids: Sequence[int]) -> None:
        self.lookup.finish(token_ids)


@drafters.register("hybrid")
class HybridDraft(DrafterKind):
    """``suffix`` or a drafter with a model, whichever is expected to be faster in a round.

    Args:
        of: name of the drafter with a model.
        settings: its options.
        least, most, capacity, memory: options of ``suffix``.
    """

    draws = False
    paces = True

    def __init__(
        self,
        of: str = "model",
        settings: dict[str, Any] | None = None,
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
        self.contexts, self.gathers = self.inner.contexts, self.inner.gathers
        self.lookup = SuffixDraft(least, most, capacity, memory)

    def check(self, profile: Profile) -> Iterable[OptionConflict]:
        return self.inner.check(profile)

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
        model = yield from self.inner.open(clip)
        lookup = cast(LookupDrafter, (yield from self.lookup.open(clip)))
        gamma = clip.profile.draft.gamma
        return HybridDrafter(model, lookup, None if gamma == "auto" else gamma)
