"""Draft windows of all clips in flight, chosen for the most tokens per second in total. Pure: times are arguments.

Clips draft in lockstep: a draft pass has one row of each clip whose window is not full yet, so windows gamma_i cost
sum over g of T_q(clips with gamma_i >= g). Then one target pass verifies them all: T_p(B clips, sum of (gamma_i + 1)
rows). It yields the sum of E_i = (1 - beta_i^(gamma_i + 1)) / (1 - beta_i) tokens. With many clips rows stop being free
and windows shrink, down to 0, which is plain decoding.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import neg

from vidspec.draft_length.blocks import BlockController
from vidspec.draft_length.costs import PassCosts, TimeCurve, TokenPrices
from vidspec.draft_length.trees import TreeController
from vidspec.draft_length.window import REST, AcceptanceEstimate, DraftWindow, TrialInterval, chain_tokens

#: Windows of the trials of a resting draft, in turn.
TRIAL = (2, 1)

#: Share of the time that trials may cost, those of trees included; costlier trials are further apart.
TRIAL_SHARE = 0.01

#: Rounds with a new number of clips before the windows of resting drafts are no longer computed.
HEARD = 4

#: Other windows than the chosen ones are measured if none of this many passes had about their width.
UNSEEN = 128

#: The longest window. By the speed model 16 to 24 tokens are best if 97 to 98 of 100 are accepted and a draft pass
#: costs a seventh of the target's; sequences with recurrent layers cannot roll back further.
HIGHEST = 32

#: Prior acceptance rate, and its weight in tokens; the weight of other clips' acceptance for a new clip.
PRIOR, PRIOR_TOKENS, INHERITED = 0.8, 3.0, 16.0

#: Least acceptances that are tried.
TRIED = 24

#: Share of the rate with fewer passes of the draft below which no further one is tried.
WORSE = 0.8


class WindowController:
    """Chooses the windows of all clips of one loop together.

    It follows the times of passes and the outcome of every window. The first rounds try ``start`` and twice as many
    tokens, or four times while all are accepted, to measure the cost of a row. Windows are chosen after each target
    pass; they change for a gain of more than ``slack``, and at once when a clip joins or leaves. While plain decoding
    is faster the draft rests: nothing is computed, and at growing intervals all resting clips try a draft in one round.
    While clips draft, rounds of plain decoding, of half and of double windows are tried at intervals. Trials take a
    small share of the time.

    Windows depend on times, so a token's random numbers must not depend on windows.

    Args:
        costs: measured times of passes.
        highest: the longest window.
        slack: hysteresis, as a share of the tokens per second.
        fade: weight of a round's outcome one round later.

    Attributes:
        prices: of passes, in tokens.
        trees: controls the growth of trees drafted in place of chains.
        blocks: chooses how much of a block draft is verified.
    """

    def __init__(
        self, costs: PassCosts | None = None, *, highest: int = HIGHEST, slack: float = 0.02, fade: float = 0.98
    ) -> None:
        self.costs = costs or PassCosts()
        self._target = self.costs["target"]
        self.highest, self.slack, self.fade = highest, slack, fade
        self.prices = TokenPrices(self.costs, fade)
        self.trees = TreeController(self.prices)
        self.blocks = BlockController(self.prices)
        self._windows: list[DraftWindow] = []
        self._acceptance = AcceptanceEstimate(PRIOR, PRIOR_TOKENS)  # of all clips
        self._answers = 0
        self._rest = TrialInterval()
        self._all_resting = False  # all clips rest until the next trial, or until one joins or leaves
        self._load, self._load_since = 0, 0  # batch size, and the round since which it is about that
        self._looks = 0
        self._changed = self._unheard = False  # since the last choice: clips; a round without a measured pass
        self._chosen_at = self._ended_at = 0  # passes of the target at the last choice, and at the end of the round

    def window(self, start: int = 5) -> DraftWindow:
        """Return the window of a clip whose prompt has been read; the clip counts until it is closed.

        Args:
            start: the initial window.
        """
        if not 1 <= start <= self.highest:
            raise ValueError(f"the window must satisfy 1 <= start <= highest, not {start}, {self.highest}")
        known = self._acceptance
        inherited = AcceptanceEstimate(known.beta, min(INHERITED, known.tokens))
        window = DraftWindow(self, start, inherited, best=start, next=start)
        self._windows.append(window)
        self._note_change()
        return window

    def remove(self, window: DraftWindow) -> None:
        """Stop counting a clip."""
        if window in self._windows:
            self._windows.remove(window)
            self._note_change()

    def _note_change(self) -> None:
        """Note that a clip joined or left."""
        self.prices.set_clips(max(1, len(self._windows)))
        self._changed = True

    def count_outcome(self, window: DraftWindow, drafted: int, accepted: int, beside: int = 0) -> None:
        """Count a clip's verified window, see :meth:`~vidspec.draft_length.window.DraftWindow.update`."""
        if drafted:
            # Rounds of a rest age earlier measurements.
            window.acceptance.update(drafted, accepted, self.fade ** min(1 + window.idle, REST // 2))
            self._acceptance.update(drafted, accepted, self.fade)
            window.idle = 0
        else:
            window.idle += 1
        self.prices.add_tokens(accepted + beside + 1)
        self._answers += 1
        if self._answers >= len(self._windows):  # one of each clip is a round
            self._answers = 0
            self.prices.end_round()
            passes = self._target.passes
            self._unheard |= passes == self._ended_at
            self._ended_at = passes

    def choose_windows(self) -> None:
        """Choose the windows of all clips if anything was measured since the last choice."""
        times, rounds = self._target, self.prices.rounds
        if not self._windows or not (self._changed or self._unheard or times.passes != self._chosen_at):
            return
        self._chosen_at, self._unheard = times.passes, False
        if self._all_resting and not self._changed and not self._rest.is_due(rounds):
            return
        windows, clips = self._windows, len(self._windows)
        if not times:
            for window in windows:
                window.best = window.next = window.start
            self._changed = False
            return
        verify, draft = times.by_rows(clips), [0.0] * (clips + 1)
        if self.costs["draft"]:
            draft[1:] = map(self.costs["draft"].by_clips(), range(1, clips + 1))
        betas = [window.acceptance.beta for window in windows]
        chosen, rate = allot_windows(betas, draft, verify, self.highest)
        present = [window.best for window in windows]
        now = tokens_per_second(betas, present, draft, verify)
        if not self._changed and chosen != present:
            needed = 1 + self.slack if any(chosen) else 1.0
            if rate <= now * needed:
                chosen, rate = present, now
        if 4 * abs(clips - self._load) > self._load:  # earlier trials were of another load
            self._load, self._load_since = clips, rounds
            self._rest.end()
        self._changed, self.prices.rate = False, rate
        for window, gamma in zip(windows, chosen, strict=True):
            window.best = window.next = gamma
        if rounds < 3 and any(chosen):
            for window in windows:
                doublings = rounds if window.acceptance.beta > PRIOR else rounds // 2
                window.next = min(window.start << doublings, 2 * window.best, self.highest)
        else:
            self._try(betas, chosen, draft, verify)
        rests = not any(window.best or window.next for window in windows)
        self._all_resting = rests and rounds >= self._load_since + HEARD

    def _try(self, betas: list[float], chosen: list[int], draft: list[float], verify: TimeCurve) -> None:
        """Set windows for one trial round: a resting draft's, or ones with few measurements."""
        clips, rounds, rest = len(chosen), self.prices.rounds, self._rest
        if 0 not in chosen:
            rest.end()
        elif rest.due is None:
            rest.postpone(rounds)
        tried = None
        if rest.is_due(rounds):
            trial = min(TRIAL[(rest.failed - 1) % len(TRIAL)], self.highest)
            tried = [gamma or trial for gamma in chosen]
            unread = sum(window.idle for window in self._windows)
            loss = self._loss(betas, tried, draft, verify) + self._catch_up_seconds(unread)
            rest.postpone(rounds + 1, self._rounds_for(loss, round_seconds(chosen, draft, verify)))
        elif any(chosen) and rounds >= self._looks:
            # Among windows never measured the widest comes first: only it shows the cost of more rows.
            others = [[min(2 * g, self.highest) for g in chosen], [0] * clips, [gamma // 2 for gamma in chosen]]
            seen = [self._target.since(clips, clips + sum(other)) for other in others]
            if max(seen) >= UNSEEN:
                tried = others[seen.index(max(seen))]
                loss = self._loss(betas, tried, draft, verify)
                self._looks = rounds + max(REST, self._rounds_for(loss, round_seconds(chosen, draft, verify)))
        if tried is not None:
            for window, gamma in zip(self._windows, tried, strict=True):
                window.next = gamma

    def _loss(self, betas: list[float], tried: list[int], draft: list[float], verify: TimeCurve) -> float:
        """Return the seconds that a round with ``tried`` loses to the chosen windows."""
        share = tokens_per_second(betas, tried, draft, verify) / self.prices.rate
        return round_seconds(tried, draft, verify) * (1 - share)

    def _catch_up_seconds(self, tokens: int) -> float:
        """Return the seconds in which the draft reads ``tokens`` that were emitted while it rested."""
        if not tokens or not self.costs["draft"]:
            return 0.0
        clips = self.prices.clips
        seconds = self.costs["draft"].by_rows(clips)
        return seconds(clips + tokens) - seconds(clips)

    def _rounds_for(self, loss: float, seconds: float) -> int:
        """Return the rounds of ``seconds`` in which ``loss`` is the share that trials may cost."""
        share = TRIAL_SHARE / 2 if self.trees.tried else TRIAL_SHARE
        return math.ceil(loss / (share * seconds))


def allot_windows(
    betas: Sequence[float], draft: Sequence[float], verify: Callable[[float], float], highest: int = 16
) -> tuple[list[int], float]:
    """Return the windows with the most tokens per second, and that rate.

    Where all rows cost the same, the best windows have two numbers: the g-th pass of the draft takes the clips whose
    beta^g is at least the one, up to a last pass. All last passes are tried, and all least acceptances, or
    :data:`TRIED` of them, evenly apart by the rows that they draft.

    Args:
        betas: acceptance rate of each clip.
        draft: seconds of a draft pass by number of clips, from 0.
        verify: seconds of the target's pass by rows, with all clips in it.
        highest: the longest window.
    """
    clips = len(betas)
    order = sorted(range(clips), key=lambda clip: -betas[clip])
    powers = [[betas[clip] ** g for clip in order] for g in range(1, highest + 1)]
    gains = [list(accumulate(row, initial=0.0)) for row in powers]
    leasts = sorted({power for row in powers for power in row if power > 0})
    tried = leasts[:: 1 + len(leasts) // TRIED] if min(betas) < max(betas) else leasts[:1]
    best: list[int] = []  # clips in the first, second, ... draft pass
    fastest = clips / verify(clips)
    for least in reversed(tried):  # the fewest rows first
        tokens, seconds, rows, peak = float(clips), 0.0, clips, 0.0
        passes: list[int] = []
        for row, gain in zip(powers, gains, strict=True):
            if row[0] < least:
                break
            count = bisect_right(row, -least, key=neg)
            passes.append(count)
            tokens, seconds, rows = tokens + gain[count], seconds + draft[count], rows + count
            rate = tokens / (seconds + verify(rows))
            if rate > fastest:
                fastest, best = rate, passes.copy()
            if rate < WORSE * peak:
                break
            peak = max(peak, rate)
    windows = [0] * clips
    for place, clip in enumerate(order):
        windows[clip] = sum(count > place for count in best)
    return windows, fastest


def round_seconds(gammas: Sequence[int], draft: Sequence[float], verify: Callable[[float], float]) -> float:
    """Return the seconds of a round with these windows."""
    passes = (sum(gamma >= g for gamma in gammas) for g in range(1, max(gammas) + 1))
    return sum(draft[n] for n in passes) + verify(len(gammas) + sum(gammas))


def tokens_per_second(
    betas: Sequence[float], gammas: Sequence[int], draft: Sequence[float], verify: Callable[[float], float]
) -> float:
    """Return the tokens per second with these windows."""
    tokens = sum(map(chain_tokens, betas, gammas))
    return tokens / round_seconds(gammas, draft, verify)
