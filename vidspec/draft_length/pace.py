"""Draft windows of all clips in flight, chosen for the most tokens per second in total. Pure: times are arguments.

Clips draft in lockstep: a draft pass has one row of each clip whose window is not full yet, so windows gamma_i cost
sum over g of T_q(clips with gamma_i >= g). Then one target pass verifies them all: T_p(B clips, sum of (gamma_i + 1)
rows). It yields the sum of E_i = (1 - beta_i^(gamma_i + 1)) / (1 - beta_i) tokens. With many clips rows stop being free
and windows shrink, down to 0, which is plain decoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from vidspec.draft_length.allot import allot_windows, round_seconds, tokens_per_second
from vidspec.draft_length.blocks import BlockController
from vidspec.draft_length.costs import RoundCosts
from vidspec.draft_length.passes import TimeCurve
from vidspec.draft_length.trees import TreeController
from vidspec.draft_length.window import AcceptanceEstimate, DraftWindow, WindowState

__all__ = ["HIGHEST", "REST", "TRIAL", "WindowController"]

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
#: Prior acceptance rate, and its weight in tokens; the weight of other clips' acceptance for a new clip.
PRIOR, PRIOR_TOKENS, INHERITED = 0.8, 3.0, 16.0


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
        costs: measured costs of passes.
        trees: controls the growth of trees drafted in place of chains.
        blocks: chooses how much of a block draft is verified.
    """

    def __init__(self, *, highest: int = HIGHEST, slack: float = 0.02, fade: float = 0.98) -> None:
        self.highest, self.slack, self.fade = highest, slack, fade
        self.costs = RoundCosts(fade)
        self.trees = TreeController(self.costs)
        self.blocks = BlockController(self.costs)
        self._windows: list[WindowState] = []
        self._acceptance = AcceptanceEstimate(PRIOR, PRIOR_TOKENS)  # of all clips
        self._learned = False
        self._answers = 0
        self._due: int | None = None  # round of the next trial, if any clip rests
        self._failed_trials = 0  # failed trials in a row
        self._all_resting = False  # all clips rest until the next trial, or until one joins or leaves
        self._load, self._load_since = 0, 0  # batch size, and the round since which it is about that
        self._looks = 0
        self._measured = self._heard = self._changed = False

    def window(self, start: int = 5) -> DraftWindow:
        """Return the window of a clip whose prompt has been read; the clip counts until it is closed.

        Args:
            start: the initial window.
        """
        if not 1 <= start <= self.highest:
            raise ValueError(f"the window must satisfy 1 <= start <= highest, not {start}, {self.highest}")
        known = self._acceptance
        inherited = AcceptanceEstimate(known.beta, min(INHERITED, known.tokens))
        state = WindowState(start, inherited, chosen=start, next=start)
        self._windows.append(state)
        self._note_change()
        return DraftWindow(self, state)

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
        costs = self.costs
        costs.add_seconds(seconds * passes, ends_round=lane == "target")
        if lane == "target":
            if self._all_resting and rows == sequences and not self._is_due(HEARD):
                return
            costs.verify.add(sequences, rows, seconds)
            self._measured = self._heard = True
        else:
            (costs.grow if grows else costs.draft).add(sequences, rows, seconds)

    def learn(self, verify: Callable[[int], float], tq: float, beta: float, weight: float = 16.0) -> None:
        """Replace all earlier measurements by one made with a single clip.

        Args:
            verify: seconds of a target pass by its rows.
            tq: seconds of a draft pass on one token.
            beta: acceptance rate, with the weight of ``weight`` tokens.
        """
        self.costs.forget_passes()
        widest = self.highest + 1
        for rows in (*range(1, min(17, widest)), *range(17, widest, 4), widest):  # fewer than PassTimes keeps
            for _ in range(3):
                self.costs.verify.add(1, rows, verify(rows))
        for _ in range(3):
            self.costs.draft.add(1, 1, tq)
        self._acceptance = AcceptanceEstimate(beta, weight)
        for window in self._windows:
            window.acceptance = AcceptanceEstimate(beta, weight)
        self._learned = self._measured = True

    def remove(self, state: WindowState) -> None:
        """Stop counting a clip."""
        if state in self._windows:
            self._windows.remove(state)
            self._note_change()

    def _note_change(self) -> None:
        """Note that a clip joined or left."""
        self.costs.clips = max(1, len(self._windows))
        self._measured = self._changed = True

    def count_outcome(self, state: WindowState, drafted: int, accepted: int, beside: int = 0) -> None:
        """Count a clip's verified window, see :meth:`~vidspec.draft_length.window.DraftWindow.update`."""
        if drafted:
            # Rounds of a rest age earlier measurements.
            state.acceptance.update(drafted, accepted, self.fade ** min(1 + state.idle, REST // 2))
            self._acceptance.update(drafted, accepted, self.fade)
            state.idle = 0
        else:
            state.idle += 1
        self.costs.add_tokens(accepted + beside + 1)
        self._answers += 1
        if self._answers >= len(self._windows):  # one of each clip is a round
            self._answers = 0
            self.costs.rounds += 1
            self._measured |= not self._heard  # else this pass's windows are chosen already
            self._heard = False

    def choose_windows(self) -> None:
        """Choose the windows of all clips if anything was measured since the last choice."""
        if not self._measured or not self._windows:
            return
        self._measured = False
        if self._all_resting and not self._changed and not self._is_due():
            return
        windows, costs, clips = self._windows, self.costs, len(self._windows)
        if not costs.verify:
            for window in windows:
                window.chosen = window.next = window.start
            self._changed = False
            return
        verify = costs.verify.by_rows(clips)
        draft = [0.0] * (clips + 1)
        if costs.draft:
            draft[1:] = map(costs.draft.by_clips(), range(1, clips + 1))
        betas = [window.acceptance.beta for window in windows]
        chosen, rate = allot_windows(betas, draft, verify, self.highest)
        present = [window.chosen for window in windows]
        now = tokens_per_second(betas, present, draft, verify)
        if not self._changed and chosen != present:
            needed = 1 + self.slack if any(chosen) else 1.0
            if rate <= now * needed:
                chosen, rate = present, now
        if 4 * abs(clips - self._load) > self._load:  # earlier trials were of another load
            self._load, self._load_since, self._due, self._failed_trials = clips, self.costs.rounds, None, 0
        self._changed, costs.rate = False, rate
        for window, gamma in zip(windows, chosen, strict=True):
            window.chosen = window.next = gamma
        if self.costs.rounds < 3 and not self._learned and any(chosen):
            for window in windows:
                doublings = self.costs.rounds if window.acceptance.beta > PRIOR else self.costs.rounds // 2
                wide = window.start << doublings
                window.next = min(wide, 2 * window.chosen, self.highest)
        else:
            self._try(betas, chosen, draft, verify)
        rests = not any(window.chosen or window.next for window in windows)
        self._all_resting = rests and self.costs.rounds >= self._load_since + HEARD

    def _is_due(self, ahead: int = 0) -> bool:
        """Return True if the next trial is at most ``ahead`` rounds away."""
        return self._due is not None and self.costs.rounds >= self._due - ahead

    def _try(self, betas: list[float], chosen: list[int], draft: list[float], verify: TimeCurve) -> None:
        """Set windows for one trial round: a resting draft's, or ones with few measurements."""
        clips = len(chosen)
        if 0 not in chosen:
            self._due, self._failed_trials = None, 0
        elif self._due is None:
            self._due = self.costs.rounds + REST
        tried = None
        if self._is_due():
            trial = min(TRIAL[self._failed_trials % len(TRIAL)], self.highest)
            tried = [gamma or trial for gamma in chosen]
            self._failed_trials += 1
            idle = sum(window.idle for window in self._windows)
            loss = self._loss(betas, tried, draft, verify) + self.costs.catch_up_seconds(idle)
            rest = max(
                REST << min(self._failed_trials, DOUBLINGS),
                self._rounds_for(loss, round_seconds(chosen, draft, verify)),
            )
            self._due = self.costs.rounds + 1 + rest
        elif any(chosen) and self.costs.rounds >= self._looks:
            # Among windows never measured the widest comes first: only it shows the cost of more rows.
            others = [[min(2 * g, self.highest) for g in chosen], [0] * clips, [gamma // 2 for gamma in chosen]]
            seen = [self.costs.verify.since(clips, clips + sum(other)) for other in others]
            if max(seen) >= UNSEEN:
                tried = others[seen.index(max(seen))]
                loss = self._loss(betas, tried, draft, verify)
                rest = self._rounds_for(loss, round_seconds(chosen, draft, verify))
                self._looks = self.costs.rounds + max(REST, rest)
        if tried is not None:
            for window, gamma in zip(self._windows, tried, strict=True):
                window.next = gamma

    def _loss(self, betas: list[float], tried: list[int], draft: list[float], verify: TimeCurve) -> float:
        """Return the seconds that a round with ``tried`` loses to the chosen windows."""
        share = tokens_per_second(betas, tried, draft, verify) / self.costs.rate
        return round_seconds(tried, draft, verify) * (1 - share)

    def _rounds_for(self, loss: float, seconds: float) -> int:
        """Return the rounds of ``seconds`` in which ``loss`` is the share that trials may cost."""
        share = TRIAL_SHARE / 2 if self.trees.tried else TRIAL_SHARE
        return math.ceil(loss / (share * seconds))
