"""Prices of passes in tokens: what all clips would emit meanwhile at the recent rate. Pure."""

from __future__ import annotations

from vidspec.draft_length.costs import Lane, PassCosts
from vidspec.draft_length.passes import TimeCurve

__all__ = ["TokenPrices"]

#: Prices are computed again after this many rounds: it takes longer than a draft.
PRICED = 8


class TokenPrices:
    """Prices of the passes of one loop, at the recent rate or that of the chosen chains, whichever is higher.

    Args:
        costs: measured times of passes.
        fade: weight of a round's tokens and seconds one round later.

    Attributes:
        clips: number of clips in flight, at least 1.
        rounds: number of rounds so far; one window of each clip in flight is a round.
        rate: tokens per second of all clips with the chosen windows; 0 before any were chosen.
    """

    def __init__(self, costs: PassCosts, fade: float) -> None:
        self.costs, self.fade = costs, fade
        self.clips, self.rounds, self.rate = 1, 0, 0.0
        self._tokens = self._seconds = self._until = self._measured = self._per_second = 0.0
        self._priced_at: tuple[int, int] | None = None
        self._curves: dict[Lane, TimeCurve] = {}
        self._rows: list[float] = []

    def set_clips(self, clips: int) -> None:
        """Set the number of clips in flight, and convert the recent rate to it."""
        if clips != self.clips and self._seconds and self.costs["target"]:
            self._tokens *= clips / self.clips
            self._seconds *= self.costs.round_seconds(clips) / self.costs.round_seconds(self.clips)
            self._measured = self._tokens / self._seconds
        self.clips = clips

    def add_tokens(self, tokens: int) -> None:
        """Add tokens that a clip emitted."""
        self._tokens += tokens

    def end_round(self) -> None:
        """End a round, with the tokens and the passes since the last one."""
        self.rounds += 1
        self._seconds, self._until = self._seconds + self.costs.seconds - self._until, self.costs.seconds
        self._measured = self._tokens / self._seconds if self._seconds else 0.0
        self._tokens, self._seconds = self.fade * self._tokens, self.fade * self._seconds

    def of_seconds(self, seconds: float) -> float:
        """Return the price of ``seconds``, for all clips together."""
        return self._per_second * seconds

    def of_pass(self, lane: Lane, rows: int) -> float:
        """Return the price for each clip of a pass over ``rows`` rows of each; 0 until it is known."""
        curve = self._curve(lane)
        return 0.0 if curve is None else self._per_second / self.clips * curve(self.clips * rows)

    def row_prices(self, rows: int) -> list[float]:
        """Return the prices of 0, 1, ... ``rows`` drafted rows of each clip in the target's pass, for each clip.

        Empty until they are known; may be longer.
        """
        curve = self._curve("target")
        if curve is not None and len(self._rows) <= rows:
            plain = self.of_pass("target", 1)
            self._rows = [self.of_pass("target", drafted + 1) - plain for drafted in range(rows + 1)]
        return self._rows if curve is not None else []

    def _curve(self, lane: Lane) -> TimeCurve | None:
        """Return seconds by rows for the clips in flight; None until passes and tokens have been measured."""
        now = self.clips, self.rounds if self.rounds < PRICED else self.rounds // PRICED
        if self._priced_at != now:
            self._priced_at, self._curves, self._rows = now, {}, []
            self._per_second = max(self.rate, self._measured)
        times = self.costs["tree"] or self.costs["draft"] if lane == "tree" else self.costs[lane]
        if not times or not self._per_second:
            return None
        if lane not in self._curves:
            self._curves[lane] = times.by_rows(self.clips)
        return self._curves[lane]
