"""How many clips to decode at once, by what passes take while they run. Pure, and knows nothing of memory.

A round of B clips is d draft passes with a row of each and a target pass over r rows of each, so its tokens per second
grow as B / (d T_q(B) + T_p(B, B r)). d and r are what they were of late.
"""

from __future__ import annotations

from vidspec.draft_length.passes import PassTimes

__all__ = ["GAIN", "SIZES", "START", "BatchSize"]

#: Numbers of clips that are considered, and the first.
SIZES, START = (4, 8, 16, 32), 8
#: What twice as many clips have to gain in tokens per second: they take memory, and each of them is finished later.
GAIN = 1.03
#: It is thought over after so many target passes of nearly as many clips as are allowed; older ones count less.
PASSES, FADE = 32, 0.95


class BatchSize:
    """The fewest clips of which twice as many gain less than ``GAIN``; at most doubled before it is measured anew.

    Attributes:
        most: clips at once.
    """

    def __init__(self) -> None:
        self.most = START
        self._verify, self._draft = PassTimes(), PassTimes()
        self._rounds = self._clips = self._rows = self._drafts = 0.0
        self._drafting = self._full = 0

    def passed(self, lane: str, sequences: int, rows: int, seconds: float, passes: int = 1) -> None:
        """A pass is over that read no prompt, or ``passes`` of a chain, of which ``seconds`` is the mean.

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
        """What tokens per second are proportional to, with so many clips; something must have been heard."""
        seconds = self._verify.by_rows(clips)(clips * self._rows / self._clips)
        if self._draft:
            seconds += self._drafts / self._rounds * self._draft.by_clips()(clips)
        return clips / seconds
