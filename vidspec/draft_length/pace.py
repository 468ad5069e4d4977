"""Draft windows of all clips in flight, chosen for the most tokens per second in total. Pure: times are arguments.

Clips draft in lockstep: a draft pass has one row of each clip whose window is not full yet, so windows gamma_i cost
sum over g of T_q(clips with gamma_i >= g). Then one target pass verifies them all: T_p(B clips, sum of (gamma_i + 1)
rows). It yields the sum of E_i = (1 - beta_i^(gamma_i + 1)) / (1 - beta_i) tokens. With many clips rows stop being free
and windows shrink, down to 0, which is plain decoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from vidspec.deprecation import old_names
from vidspec.draft_length.allot import allot_windows, round_seconds, tokens_per_second
from vidspec.draft_length.passes import PassTimes, TimeCurve
from vidspec.draft_length.trees import TreeController

__all__ = ["HIGHEST", "REST", "TRIAL", "DraftWindow", "WindowController"]

#: Rounds of plain decoding before a draft without gain is tried again; the windows of these trials, in turn; how often
#: the rounds may double, once per failed trial.
REST, TRIAL, DOUBLINGS = 16, (2, 1), 5
#: Share of the time that trials may cost, those of trees included; costlier trials are further apart.
TRIAL_SHARE = 0.01
#: Last passes of a rest that are timed, for comparison with the trial.
HEARD = 4
#: Other windows than the chosen ones are measured if none of this many passes had about their width.
UNSEEN = 128
#: The longest window. By the speed model 16 to 24 tokens are best if 97 to 98 of 100 are accepted and a draft pass
#: costs a seventh of the target's; sequences with recurrent layers cannot roll back further.
HIGHEST = 32
#: Row prices are computed again after this many rounds.
PRICED = 8
#: Prior acceptance rate, and its weight in tokens; the weight of other clips' acceptance for a new clip.
PRIOR, PRIOR_TOKENS, INHERITED = 0.8, 3.0, 16.0


class AcceptanceEstimate:
    """Acceptance rate of drafted tokens; older rounds weigh less."""

    def __init__(self, beta: float, tokens: float) -> None:
        self.passed, self.failed = tokens * beta, tokens * (1 - beta)

    @property
    def tokens(self) -> float:
        return self.passed + self.failed

    @property
    def beta(self) -> float:
        return self.passed / self.tokens

    def update(self, drafted: int, accepted: int, kept: float) -> None:
        """Add a verified window; the weight of earlier ones is multiplied by ``kept``."""
        self.passed = kept * self.passed + accepted
        self.failed = kept * self.failed + (accepted < drafted)


class DraftWindow:
    """Draft window of one clip; see :meth:`WindowController.window`."""

    def __init__(self, pace: WindowController, start: int, seen: AcceptanceEstimate) -> None:
        self.start = start
        self._pace = pace
        self._seen = seen
        self._chosen = self._next = start
        self._idle = 0

    @property
    def gamma(self) -> int:
        """Draft tokens of this clip's next round; 0 for plain decoding."""
        self._pace._settle()
        return self._next

    @property
    def chosen(self) -> int:
        """The best window by measurement, regardless of a trial in the next round."""
        self._pace._settle()
        return self._chosen

    @property
    def beta(self) -> float:
        """Acceptance rate so far."""
        return self._seen.beta

    def rest(self) -> bool:
        """Return True if this clip's next round is plain decoding; counts the round, in place of :meth:`update`."""
        self._pace._settle()
        if self._next:
            return False
        self._idle += 1
        self._pace._count()
        return True

    def update(self, drafted: int, accepted: int, beside: int = 0) -> None:
        """Add a verified window of this clip.

        Args:
            drafted, accepted: number of tokens in the window, and of those accepted; for a tree on its best path.
            beside: further accepted tokens.
        """
        pace = self._pace
        if drafted:
            # Rounds of a rest age earlier measurements.
            self._seen.update(drafted, accepted, pace.fade ** min(1 + self._idle, REST // 2))
            pace._seen.update(drafted, accepted, pace.fade)
            self._idle = 0
        else:
            self._idle += 1
        pace._count(accepted + beside)

    def close(self) -> None:
        """Stop counting the clip: it has ended."""
        self._pace._close(self)


class WindowController:
    """Chooses the windows of all clips of one loop together.

    It receives every pass without prefill, and the outcome of every window. The first rounds try ``start`` and twice
    as many tokens, or four times while all are accepted, to measure the cost of a row, unless :meth:`learn` has set it.
    Windows are chosen after each target pass; they change for a gain of more than ``slack``, and at once when a clip
    joins or leaves. While plain decoding is faster the draft rests: nothing is computed or measured, and at growing
    intervals all resting clips try a draft in one round. While clips draft, rounds of plain decoding, of half and of
    double windows are tried at intervals. Trials take a small share of the time.

    Windows depend on times, so a token's random numbers must not depend on windows.

    Args:
        highest: the longest window.
        slack: hysteresis, as a share of the tokens per second.
        fade: weight of a round's outcome one round later.

    Attributes:
        trees: controls the growth of trees drafted in place of chains.
    """

    def __init__(self, *, highest: int = HIGHEST, slack: float = 0.02, fade: float = 0.98) -> None:
        self.highest, self.slack, self.fade = highest, slack, fade
        self._windows: list[DraftWindow] = []
        self._seen = AcceptanceEstimate(PRIOR, PRIOR_TOKENS)
        self._verify, self._draft, self._grow = PassTimes(), PassTimes(), PassTimes()
        self._learned = False
        self._rounds = 0
        self._answers = 0
        self._due: int | None = None  # round of the next trial, if any clip rests
        self._failed_trials = 0  # failed trials in a row
        self._all_resting = False  # all clips rest until the next trial, or until one joins or leaves
        self._load, self._load_since = 0, 0  # batch size, and the round since which it is about that
        self._looks = 0
        self._rate = 0.0
        self._tokens = self._seconds = 0.0
        self._prices_at: tuple[int, int] | None = None  # clips and round at which the prices below were computed
        self._rows_cost: list[float] = []
        self._pass_cost: float | None = None
        self._measured = self._heard = self._changed = False
        self.trees = TreeController(self)

    def window(self, start: int = 5) -> DraftWindow:
        """Return the window of a clip whose prompt has been read; the clip counts until it is closed.

        Args:
            start: the initial window.
        """
        if not 1 <= start <= self.highest:
            raise ValueError(f"the window must satisfy 1 <= start <= highest, not {start}, {self.highest}")
        made = DraftWindow(self, start, AcceptanceEstimate(self._seen.beta, min(INHERITED, self._seen.tokens)))
        self._windows.append(made)
        self._measured = self._changed = True
        return made

    def add_pass(
        self, lane: str, sequences: int, rows: int, seconds: float, passes: int = 1, grows: bool = False
    ) -> None:
        """Add a pass without prefill.

        Args:
            lane: ``target`` or ``draft``.
            sequences: number of clips; one whose drafter reads several contexts at once counts once.
            rows: tokens of all clips.
            seconds: its time; for a chain that runs as one piece, the mean of its ``passes``.
            grows: True if it grows a tree: the host reads its result before the next pass.
        """
        self._seconds += seconds * passes
        if lane == "target":
            self._tokens, self._seconds = self.fade * self._tokens, self.fade * self._seconds
            if self._all_resting and rows == sequences and not self._is_due(HEARD):
                return
            self._verify.add(sequences, rows, seconds)
            self._measured = self._heard = True
        else:
            (self._grow if grows else self._draft).add(sequences, rows, seconds)

    def learn(self, verify: Callable[[int], float], tq: float, beta: float, weight: float = 16.0) -> None:
        """Replace all earlier measurements by one made with a single clip.

        Args:
            verify: seconds of a target pass by its rows.
            tq: seconds of a draft pass on one token.
            beta: acceptance rate, with the weight of ``weight`` tokens.
        """
        self._verify, self._draft, self._grow = PassTimes(), PassTimes(), PassTimes()
        widest = self.highest + 1
        for rows in (*range(1, min(17, widest)), *range(17, widest, 4), widest):  # fewer than PassTimes keeps
            for _ in range(3):
                self._verify.add(1, rows, verify(rows))
        for _ in range(3):
            self._draft.add(1, 1, tq)
        self._seen = AcceptanceEstimate(beta, weight)
        for window in self._windows:
            window._seen = AcceptanceEstimate(beta, weight)
        self._learned = self._measured = True

    def _close(self, window: DraftWindow) -> None:
        if window in self._windows:
            self._windows.remove(window)
            self._measured = self._changed = True

    def row_prices(self, rows: int) -> list[float]:
        """Return the cost of 0, 1, ... ``rows`` drafted rows of each clip, in tokens all clips would emit meanwhile.

        At the recent rate, or that of chains if it is higher. Empty until it is known; may be longer.
        """
        if not self._verify or not self._tokens:
            return []
        self._reset_prices()
        if len(self._rows_cost) <= rows:
            clips, verify = self.clips, self._verify.by_rows(self.clips)
            rate, plain = self._rate_floor / clips, verify(clips)
            self._rows_cost = [rate * (verify(clips * (drafted + 1)) - plain) for drafted in range(rows + 1)]
        return self._rows_cost

    def price_of_drafting(self, passes: int) -> float:
        """Return the cost of ``passes`` of the draft model for each clip, in tokens; 0 until it is known."""
        if not self._draft or not self._tokens:
            return 0.0
        self._reset_prices()
        if self._pass_cost is None:
            self._pass_cost = self._draft.by_clips()(self.clips) * self._rate_floor / self.clips
        return passes * self._pass_cost

    def _reset_prices(self) -> None:
        """Drop outdated prices. They are cached: computing them per clip and round takes longer than a draft."""
        now = self.clips, self._rounds if self._rounds < PRICED else self._rounds // PRICED
        if self._prices_at != now:
            self._prices_at, self._rows_cost, self._pass_cost = now, [], None

    def prices_of_levels(self, rows: int, own: float = 0.0) -> list[float]:
        """Return the cost of a pass that grows trees for each clip, in tokens, with 0, 1, ... ``rows`` rows of each.

        Args:
            rows: the most rows.
            own: seconds that each clip takes in addition to the pass.
        """
        times = self._grow or self._draft
        if not times or not self._tokens:
            return [0.0] * (rows + 1)
        clips, seconds = self.clips, times.by_rows(self.clips)
        return [0.0, *(self._rate_floor * (seconds(clips * count) / clips + own) for count in range(1, rows + 1))]

    @property
    def _rate_floor(self) -> float:
        """Tokens per second of all clips, recent or overall, the higher; needs at least one round."""
        return max(self._rate, self._tokens / self._seconds)

    @property
    def widest(self) -> int:
        """Most rows per clip with a known cost."""
        return self._verify.widest(self.clips)

    @property
    def clips(self) -> int:
        """Number of clips in flight, at least 1."""
        return max(1, len(self._windows))

    @property
    def rounds(self) -> int:
        """Number of rounds so far; one window of each clip in flight is a round."""
        return self._rounds

    def _count(self, accepted: int = 0) -> None:
        self._tokens += accepted + 1
        self._answers += 1
        if self._answers >= len(self._windows):  # one of each clip is a round
            self._answers = 0
            self._rounds += 1
            self._measured |= not self._heard  # else this pass's windows are chosen already
            self._heard = False

    def _settle(self) -> None:
        if not self._measured or not self._windows:
            return
        self._measured = False
        if self._all_resting and not self._changed and not self._is_due():
            return
        windows = self._windows
        if not self._verify:
            for window in windows:
                window._chosen = window._next = window.start
            self._changed = False
            return
        clips = len(windows)
        verify = self._verify.by_rows(clips)
        draft = [0.0] * (clips + 1)
        if self._draft:
            draft[1:] = map(self._draft.by_clips(), range(1, clips + 1))
        betas = [window.beta for window in windows]
        chosen, rate = allot_windows(betas, draft, verify, self.highest, self._rate)
        present = [window._chosen for window in windows]
        now = tokens_per_second(betas, present, draft, verify)
        if not self._changed and chosen != present:
            needed = 1 + self.slack if any(chosen) else 1.0
            if rate <= now * needed:
                chosen, rate = present, now
        if 4 * abs(clips - self._load) > self._load:  # earlier trials were of another load
            self._load, self._load_since, self._due, self._failed_trials = clips, self._rounds, None, 0
        self._changed, self._rate = False, rate
        for window, gamma in zip(windows, chosen, strict=True):
            window._chosen = window._next = gamma
        if self._rounds < 3 and not self._learned and any(chosen):
            for window in windows:
                doublings = self._rounds if window.beta > PRIOR else self._rounds // 2
                wide = window.start << doublings
                window._next = min(wide, 2 * window._chosen, self.highest)
        else:
            self._try(betas, chosen, draft, verify)
        rests = not any(window._chosen or window._next for window in windows)
        self._all_resting = rests and self._rounds >= self._load_since + HEARD

    def _is_due(self, ahead: int = 0) -> bool:
        """Return True if the next trial is at most ``ahead`` rounds away."""
        return self._due is not None and self._rounds >= self._due - ahead

    def _try(self, betas: list[float], chosen: list[int], draft: list[float], verify: TimeCurve) -> None:
        """Set windows for one trial round: a resting draft's, or ones with few measurements."""
        clips = len(chosen)
        if 0 not in chosen:
            self._due, self._failed_trials = None, 0
        elif self._due is None:
            self._due = self._rounds + REST
        tried = None
        if self._is_due():
            trial = min(TRIAL[self._failed_trials % len(TRIAL)], self.highest)
            tried = [gamma or trial for gamma in chosen]
            self._failed_trials += 1
            loss = self._loss(betas, tried, draft, verify) + self._catch_up_seconds()
            rest = max(
                REST << min(self._failed_trials, DOUBLINGS),
                self._rounds_for(loss, round_seconds(chosen, draft, verify)),
            )
            self._due = self._rounds + 1 + rest
        elif any(chosen) and self._rounds >= self._looks:
            # Among windows never measured the widest comes first: only it shows the cost of more rows.
            others = [[min(2 * g, self.highest) for g in chosen], [0] * clips, [gamma // 2 for gamma in chosen]]
            seen = [self._verify.since(clips, clips + sum(other)) for other in others]
            if max(seen) >= UNSEEN:
                tried = others[seen.index(max(seen))]
                loss = self._loss(betas, tried, draft, verify)
                self._looks = self._rounds + max(REST, self._rounds_for(loss, round_seconds(chosen, draft, verify)))
        if tried is not None:
            for window, gamma in zip(self._windows, tried, strict=True):
                window._next = gamma

    def _loss(self, betas: list[float], tried: list[int], draft: list[float], verify: TimeCurve) -> float:
        """Return the seconds that a round with ``tried`` loses to the chosen windows."""
        return round_seconds(tried, draft, verify) * (1 - tokens_per_second(betas, tried, draft, verify) / self._rate)

    def _catch_up_seconds(self) -> float:
        """Return the seconds in which the draft reads the tokens emitted while it rested."""
        idle = sum(window._idle for window in self._windows)
        if not idle or not self._draft:
            return 0.0
        seconds = self._draft.by_rows(self.clips)
        return seconds(self.clips + idle) - seconds(self.clips)

    def _rounds_for(self, loss: float, seconds: float) -> int:
        """Return the rounds of ``seconds`` in which ``loss`` is the share that trials may cost."""
        share = TRIAL_SHARE / 2 if self.trees.tried else TRIAL_SHARE
        return math.ceil(loss / (share * seconds))


if not TYPE_CHECKING:  # see old_names
    __getattr__ = old_names(__name__, {"Pace": "WindowController", "Window": "DraftWindow"})
