"""The chain length that pays most in turns, found while decoding. Pure: times and outcomes come in as numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from statistics import median

from vidspec.planning.speed import chain_tokens

__all__ = ["ChainWindow", "best_window", "line_through"]

#: Rounds of plain decoding before a draft that did not pay is tried again, and the window of that trial.
REST, TRIAL = 16, 2
#: Until passes of two widths have been seen, a row is taken to add this share of a pass.
ROW = 0.04


def best_window(
    beta: float, verify: Callable[[int], float], tq: float, overhead: float = 0.0, highest: int = 16
) -> tuple[int, float]:
    """The window gamma in 0..highest with the most tokens per second, and those; 0 is plain decoding.

    Tokens of a round are (1 - beta^(gamma+1)) / (1 - beta); it lasts gamma * T_q + T_p(gamma+1) + overhead.

    Args:
        beta: probability that a drafted token is accepted.
        verify: seconds of a target pass by its rows.
        tq: seconds of a draft pass on one token.
        overhead: seconds that a round with a draft costs besides.
        highest: the longest window.
    """
    rates = {0: 1 / verify(1)}
    for gamma in range(1, highest + 1):
        rates[gamma] = chain_tokens(beta, gamma) / (gamma * tq + verify(gamma + 1) + overhead)
    best = max(rates, key=lambda gamma: rates[gamma])
    return best, rates[best]


def line_through(points: Mapping[int, float]) -> Callable[[int], float]:
    """T_p(rows) from medians by rows: a straight line by the median of all pairs' slopes, never falling.

    With one point only, each further row adds the share ``ROW`` of it.
    """
    rows = sorted(points)
    pairs = [(a, b) for i, a in enumerate(rows) for b in rows[i + 1 :]]
    slopes = [(points[b] - points[a]) / (b - a) for a, b in pairs]
    slope = max(0.0, median(slopes)) if slopes else ROW * points[rows[0]]
    base = median(points[n] - slope * n for n in rows)
    floor = min(points.values()) / 10
    return lambda n: max(base + slope * n, floor)


class ChainWindow:
    """Keeps the window of the sequential schedule where it pays most.

    Acceptance is counted with older rounds fading; T_q and T_p(rows) are medians of recent passes. The first rounds
    try ``start`` and twice as many, which shows what a row costs, unless :meth:`learn` has told. The window changes
    for a gain of more than ``slack``. Where plain decoding is faster the draft rests, and is tried again now and then.

    Args:
        start: the window before anything is known.
        highest: the longest.
        slack: hysteresis, as a share of the tokens per second.
        memory: passes that are remembered of each kind.
        fade: what a round's outcome still counts one round later.
    """

    def __init__(
        self, start: int = 5, *, highest: int = 16, slack: float = 0.02, memory: int = 9, fade: float = 0.98
    ) -> None:
        if not 1 <= start <= highest:
            raise ValueError(f"the window must satisfy 1 <= start <= highest, not {start}, {highest}")
        self.start, self.highest, self.slack, self.fade = start, highest, slack, fade
        self._memory = memory
        self._draft: deque[float] = deque(maxlen=memory)
        self._verify: dict[int, deque[float]] = {}
        self._known: Callable[[int], float] | None = None
        self._scale: deque[float] = deque(maxlen=memory)
        # As if four tokens had been judged before, of which most passed.
        self._passed, self._failed = 3.2, 0.8
        self._rounds = 0
        self._resting = 0
        self._chosen = start

    @property
    def gamma(self) -> int:
        """The window of the next round; 0 lets the draft rest."""
        return self._chosen

    @property
    def beta(self) -> float:
        """Acceptance as seen so far."""
        return self._passed / (self._passed + self._failed)

    def learn(self, verify: Callable[[int], float], tq: float, beta: float, weight: float = 16.0) -> None:
        """What a measurement found: T_p by rows, T_q in seconds, and an acceptance that counts as ``weight`` tokens."""
        self._known = verify
        self._draft.append(tq)
        self._passed, self._failed = weight * beta, weight * (1 - beta)
        self._scale.clear()
        self._choose()

    def judged(self, drafted: int, accepted: int, draft_s: float, verify_s: float) -> None:
        """A round is over; the window may change.

        Args:
            drafted, accepted: tokens of its window.
            draft_s, verify_s: seconds it spent in its two halves.
        """
        self._rounds += 1
        if self._known is not None:
            self._scale.append(verify_s / self._known(drafted + 1))
        else:
            self._verify.setdefault(drafted + 1, deque(maxlen=self._memory)).append(verify_s)
        if not drafted:
            self._resting -= 1
            if self._resting <= 0:
                self._chosen = TRIAL
            return
        self._draft.append(draft_s / drafted)
        self._passed = self.fade * self._passed + accepted
        self._failed = self.fade * self._failed + (accepted < drafted)
        if self._known is None and self._rounds < 4:
            self._chosen = min(2 * self.start, self.highest) if self._rounds >= 2 else self.start
            return
        self._choose()

    def _choose(self) -> None:
        verify = self._passes()
        tq = median(self._draft)
        best, rate = best_window(self.beta, verify, tq, highest=self.highest)
        present = self._chosen
        if present:
            now = chain_tokens(self.beta, present) / (present * tq + verify(present + 1))
            if best and rate <= now * (1 + self.slack):
                return
            if not best and rate <= now:
                return
        if not best:
            self._resting = REST
        self._chosen = best

    def _passes(self) -> Callable[[int], float]:
        known = self._known
        if known is None:
            return line_through({rows: median(times) for rows, times in self._verify.items()})
        scale = median(self._scale) if self._scale else 1.0
        return lambda rows: scale * known(rows)
