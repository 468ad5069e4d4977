"""How many clips to decode at once, by the measured times of passes. Pure; memory is not considered.

A round of B clips is d draft passes with a row of each and a target pass over r rows of each, so its tokens per second
grow as B / (d T_q(B) + T_p(B, B r)). d and r are recent means.
"""

from __future__ import annotations

from vidspec.draft_length.passes import PassTimes

__all__ = ["GAIN", "SIZES", "START", "BatchSize"]

#: The numbers of clips to choose from, and the first one.
SIZES, START = (4, 8, 16, 32), 8
#: The least gain in tokens per second from twice as many clips: they take memory, and each of them ends later.
GAIN = 1.03
#: The number is chosen anew after this many target passes of nearly the allowed number of clips; older passes fade.
PASSES, FADE = 32, 0.95


class BatchSize:
    """The fewest clips for which twice as many gain less than ``GAIN``; it doubles at most once per measurement.

    Attributes:
        most: clips at once.
    """

    def __init__(self) -> None:
        self.most = START
        self._verify, self._draft = PassTimes(), PassTimes()
        self._rounds = self._clips = self._rows = self._drafts = 0.0
        self._drafting = self._full = 0

    def add_pass(self, lane: str, sequences: int, rows: int, seconds: float, passes: int = 1) -> None:
        """Add a pass without prompts, or ``passes`` of a chain, of which ``seconds`` is the mean.

        Args:
            lane: ``target`` or ``draft``.
            sequences, rows: clips in it, and tokens of all of them.
        """
        if lane != "target":
            self._draft.add(sequences, rows, seconds)
            self._drafting += passes
            return
        self._verify.add(sequences, rows, seconds)
        self._rounds, self._drafts = FADE * self._rounds + 1, FADE * self._drafts + self._drafting
        self._clips, self._rows = FADE * self._clips + sequences, FADE * self._rows + rows
        self._drafting = 0
        self._full += 4 * sequences >= 3 * self.most
        if self._full == PASSES:
            self._full = 0
            enough = (n for n in SIZES[:-1] if self.rate(2 * n) < GAIN * self.rate(n))
            self.most = min(next(enough, SIZES[-1]), 2 * self.most)

    def rate(self, clips: int) -> float:
        """A number proportional to the tokens per second with so many clips; needs at least one pass of each kind."""
        seconds = self._verify.by_rows(clips)(clips * self._rows / self._clips)
        if self._draft:
            seconds += self._drafts / self._rounds * self._draft.by_clips()(clips)
        return clips / seconds
