"""The table of measured pass times, from which windows, trees, batch sizes and the parallel gamma follow. Pure."""

from __future__ import annotations

from typing import Literal, TypeAlias

from vidspec.draft_length.passes import PassTimes

__all__ = ["Lane", "PassCosts"]

#: ``tree``: passes of the draft that grow a tree: the host reads the result before the next one.
Lane: TypeAlias = Literal["target", "draft", "tree"]
#: Weight of a round's passes in :meth:`PassCosts.round_seconds` one round later.
FADE = 0.95


class PassCosts:
    """Measured times of the passes of one profile's models, by lane, number of clips and rows.

    The loop adds every pass, once.

    Attributes:
        seconds: of all passes together, prompts aside.
    """

    def __init__(self) -> None:
        self._times: dict[Lane, PassTimes] = {"target": PassTimes(), "draft": PassTimes(), "tree": PassTimes()}
        self._recent = dict.fromkeys(self._times, (0.0, 0.0, 0.0))  # passes, clips, rows
        self.seconds = 0.0

    def __getitem__(self, lane: Lane) -> PassTimes:
        return self._times[lane]

    def add(self, lane: Lane, clips: int, rows: int, seconds: float, passes: int = 1) -> None:
        """Add a pass, or a chain of several that ran as one piece.

        Args:
            lane: of the model.
            clips: number of clips; one whose drafter reads several contexts at once counts once.
            rows: tokens of all clips.
            seconds: its time, or the mean of the chain's ``passes``.
        """
        self._times[lane].add(clips, rows, seconds)
        self.seconds += seconds * passes
        count, of_clips, of_rows = self._recent[lane]
        self._recent[lane] = count + passes, of_clips + passes * clips, of_rows + passes * rows
        if lane == "target":
            self._recent = {one: (FADE * a, FADE * b, FADE * c) for one, (a, b, c) in self._recent.items()}

    def add_share(self, lane: Lane, clips: int, rows: int, seconds: float) -> None:
        """Add the share of clips in a pass that prompts have a part of.

        It is what a pass of their own would take, or ``seconds`` before any was measured.
        """
        if clips:
            self.seconds += self[lane].by_rows(clips)(rows) if self[lane] else seconds

    def lines(self) -> list[str]:
        """Return the table: a heading, and a line for each lane, number of clips and number of rows; empty if it is."""
        rows = [(lane, *one) for lane, times in self._times.items() for one in times.measured()]
        lines = [f"{lane:<6} {clips:>5} {n:>5} {1e3 * s:>9.2f} {count:>7}" for lane, clips, n, s, count in rows]
        return [f"{'pass':<6} {'clips':>5} {'rows':>5} {'median ms':>9} {'passes':>7}", *lines] if lines else []

    @property
    def clips(self) -> int:
        """Recent number of clips per pass of the target, at least 1."""
        passes, clips, _ = self._recent["target"]
        return max(1, round(clips / passes)) if passes else 1

    def round_seconds(self, clips: int) -> float:
        """Return the seconds of a round like the recent ones with ``clips`` clips; needs a pass of the target."""
        rounds = self._recent["target"][0]
        return sum(
            passes / rounds * self[lane].by_rows(clips)(clips * of_rows / of_clips)
            for lane, (passes, of_clips, of_rows) in self._recent.items()
            if of_clips
        )
