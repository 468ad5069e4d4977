"""Costs of a loop's passes: their measured times, and their prices in tokens at the recent rate. Pure."""

from __future__ import annotations

from vidspec.draft_length.passes import PassTimes

__all__ = ["PRICED", "RoundCosts"]

#: Row prices are computed again after this many rounds.
PRICED = 8


class RoundCosts:
    """Measured costs of the rounds of one loop.

    Args:
        fade: weight of a round's tokens and seconds one round later.

    Attributes:
        verify, draft, grow: times of the target's passes, of the draft's, and of those that grow trees.
        clips: number of clips in flight, at least 1.
        rounds: number of rounds so far; one window of each clip in flight is a round.
        rate: tokens per second of all clips with the chosen windows; 0 before any were chosen.
    """

    verify: PassTimes
    draft: PassTimes
    grow: PassTimes

    def __init__(self, fade: float) -> None:
        self.fade = fade
        self.forget_passes()
        self.clips, self.rounds, self.rate = 1, 0, 0.0
        self._tokens = self._seconds = 0.0
        self._prices_at: tuple[int, int] | None = None  # clips and round at which the prices below were computed
        self._row_prices: list[float] = []
        self._pass_price: float | None = None
        self._prices_of_passes: dict[int, float] = {}

    def forget_passes(self) -> None:
        """Drop the times of all passes."""
        self.verify, self.draft, self.grow = PassTimes(), PassTimes(), PassTimes()

    def add_tokens(self, tokens: int) -> None:
        """Add tokens that a clip emitted."""
        self._tokens += tokens

    def add_seconds(self, seconds: float, *, ends_round: bool) -> None:
        """Add the time of passes; at the end of a round, a pass of the target, earlier ones fade."""
        self._seconds += seconds
        if ends_round:
            self._tokens, self._seconds = self.fade * self._tokens, self.fade * self._seconds

    def row_prices(self, rows: int) -> list[float]:
        """Return the cost of 0, 1, ... ``rows`` drafted rows of each clip, in tokens all clips would emit meanwhile.

        At the recent rate, or that of chains if it is higher. Empty until it is known; may be longer.
        """
        if not self.verify or not self._tokens:
            return []
        self._reset_prices()
        if len(self._row_prices) <= rows:
            clips, verify = self.clips, self.verify.by_rows(self.clips)
            rate, plain = self._rate_floor / clips, verify(clips)
            self._row_prices = [rate * (verify(clips * (drafted + 1)) - plain) for drafted in range(rows + 1)]
        return self._row_prices

    def price_of_drafting(self, passes: int) -> float:
        """Return the cost of ``passes`` of the draft model for each clip, in tokens; 0 until it is known."""
        if not self.draft or not self._tokens:
            return 0.0
        self._reset_prices()
        if self._pass_price is None:
            self._pass_price = self.draft.by_clips()(self.clips) * self._rate_floor / self.clips
        return passes * self._pass_price

    def price_of_pass(self, rows: int) -> float:
        """Return the cost of one pass of the draft over ``rows`` rows of each clip, in tokens; 0 until it is known."""
        if not self.draft or not self._tokens:
            return 0.0
        self._reset_prices()
        if rows not in self._prices_of_passes:
            seconds = self.draft.by_rows(self.clips)(self.clips * rows)
            self._prices_of_passes[rows] = seconds * self._rate_floor / self.clips
        return self._prices_of_passes[rows]

    def _reset_prices(self) -> None:
        """Drop outdated prices. They are cached: computing them per clip and round takes longer than a draft."""
        now = self.clips, self.rounds if self.rounds < PRICED else self.rounds // PRICED
        if self._prices_at != now:
            self._prices_at, self._row_prices, self._pass_price, self._prices_of_passes = now, [], None, {}

    def prices_of_levels(self, rows: int, own: float = 0.0) -> list[float]:
        """Return the cost of a pass that grows trees for each clip, in tokens, with 0, 1, ... ``rows`` rows of each.

        Args:
            rows: the most rows.
            own: seconds that each clip takes in addition to the pass.
        """
        times = self.grow or self.draft
        if not times or not self._tokens:
            return [0.0] * (rows + 1)
        clips, seconds = self.clips, times.by_rows(self.clips)
        return [0.0, *(self._rate_floor * (seconds(clips * count) / clips + own) for count in range(1, rows + 1))]

    @property
    def _rate_floor(self) -> float:
        """Tokens per second of all clips, recent or overall, the higher; needs at least one round."""
        return max(self.rate, self._tokens / self._seconds)

    @property
    def widest(self) -> int:
        """Most rows per clip with a known cost."""
        return self.verify.widest(self.clips)

    def catch_up_seconds(self, tokens: int) -> float:
        """Return the seconds in which the draft reads ``tokens`` that were emitted while it rested."""
        if not tokens or not self.draft:
            return 0.0
        seconds = self.draft.by_rows(self.clips)
        return seconds(self.clips + tokens) - seconds(self.clips)
