"""The number of clips to decode at once, from measured pass times. Pure; memory is not considered.

A round of B clips is d draft passes with one row per clip and a target pass with r rows per clip, so its tokens per
second grow as B / (d T_q(B) + T_p(B, B r)). d and r are recent means.
"""

from __future__ import annotations

from vidspec.draft_length.passes import PassTimes

__all__ = ["GAIN", "SIZES", "START", "BatchSize"]

#: Batch sizes to choose from, and the initial one.
SIZES, START = (4, 8, 16, 32), 8
#: Least gain in tokens per second for twice as many clips: they take memory, and each of them ends later.
GAIN = 1.03
#: The size is chosen again after this many target passes at nearly full batch size; older passes fade.
PASSES, FADE = 32, 0.95


class BatchSize:
    """The smallest batch for which twice as many clips gain less than ``GAIN``; doubles at most once per measurement.

    Attributes:
        most: clips at once.
    """

    def __init__(self) -> None:
        self.most = START
        self._verify, self._draft = PassTimes(), PassTimes()
        self._rounds = self._clips = self._rows = self._drafts = 0.0
        self._drafting = self._full = 0

    def add_pass(self, lane: str, sequences: int, rows: int, seconds: float, passes: int = 1) -> None:
        """Add a pass without prefill, or ``passes`` of a chain, of which ``seconds`` is the mean.

        Args:
            lane: ``target`` or ``draft``.
            sequences, rows: number of clips, and of tokens in total.
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
        """Return a value proportional to the tokens per second of ``clips``; needs at least one pass of each kind."""
        seconds = self._verify.by_rows(clips)(clips * self._rows / self._clips)
        if self._draft:
            seconds += self._drafts / self._rounds * self._draft.by_clips()(clips)
        return clips / seconds
