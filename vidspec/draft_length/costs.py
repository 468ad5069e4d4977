"""Pass times: measured, fitted to clips and rows, and priced in tokens; the base of windows, trees and batch sizes.

Pure: times are arguments.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from statistics import median_low
from typing import Literal, TypeAlias

import numpy as np

#: ``tree``: passes of the draft that grow a tree: the host reads the result before the next one.
Lane: TypeAlias = Literal["target", "draft", "tree"]

#: Weight of a round's passes in :meth:`PassCosts.round_seconds` one round later.
FADE = 0.95

#: Priors until other widths are measured: a row and a clip add these shares of an empty pass.
ROW, CLIP = 0.04, 0.06

#: A pass slower than this many times the expected time counts only if the previous one was too.
SPIKE = 2.0

#: Uncertainty of the priors, and of a measured time.
ROW_OFF, CLIP_OFF, TIME_OFF = 0.04, 0.1, 0.05

#: Half-life of a pass in passes; passes kept per width; widths kept.
HALF, MEMORY, WIDTHS = 256, 9, 24

#: All widths are fitted again after this many passes, or when one has changed.
AGAIN = 16

#: Prices are computed again after this many rounds: it takes longer than a draft.
PRICED = 8


class TimeCurve:
    """Seconds of a pass by its rows or clips: linear between points, with a given slope beyond them.

    Args:
        points: (x, seconds, weight); decreasing neighbours are merged, so that the curve never decreases.
        slope: beyond the points, at least 0.
    """

    def __init__(self, points: Sequence[tuple[float, float, float]], slope: float) -> None:
        level: list[list[float]] = []  # seconds, weight, points
        xs = []
        for x, seconds, weight in sorted(points):
            xs.append(x)
            level.append([seconds, weight, 1])
            while len(level) > 1 and level[-2][0] > level[-1][0]:
                seconds, weight, count = level.pop()
                before = level[-1]
                before[0] = (before[0] * before[1] + seconds * weight) / (before[1] + weight)
                before[1] += weight
                before[2] += count
        ys = [seconds for seconds, _, count in level for _ in range(int(count))]
        self._x, self._y, self._slope = xs, ys, slope

    def __call__(self, x: float) -> float:
        xs, ys = self._x, self._y
        at = bisect_right(xs, x)
        if at == len(xs):
            return ys[-1] + self._slope * (x - xs[-1])
        if not at:
            return max(ys[0] - self._slope * (xs[0] - x), ys[0] / 10)
        left = xs[at - 1]
        return ys[at - 1] + (ys[at] - ys[at - 1]) * (x - left) / (xs[at] - left)


class _WidthTimes:
    """Passes of nearly one width."""

    __slots__ = ("clips", "count", "fitted", "last", "recent", "rows", "seconds")

    def __init__(self, clips: int) -> None:
        self.clips = clips
        self.rows = self.seconds = self.fitted = 0.0
        self.count = self.last = 0
        self.recent: tuple[deque[int], deque[float]] = deque(maxlen=MEMORY), deque(maxlen=MEMORY)  # rows, seconds

    def weight(self, now: int) -> float:
        faded: float = 0.5 ** ((now - self.last) / HALF)
        return len(self.recent[1]) * faded


class PassTimes:
    """T(clips, rows) of one model, fitted to its passes.

    Each width counts with the median of its recent passes, so that spikes have no effect. A plane, base + per row + per
    clip, none of them negative, is fitted to all widths by least squares of relative errors, in which old passes fade
    and outliers have little weight; ``ROW`` and ``CLIP`` are the priors. Measured widths near the requested one correct
    the plane.

    Attributes:
        passes: number of passes added.
    """

    def __init__(self) -> None:
        self._widths: dict[tuple[int, int], _WidthTimes] = {}
        self.passes = 0
        self._fitted = -1
        self._plane: tuple[float, float, float] | None = None
        self._slow = False

    def __bool__(self) -> bool:
        return bool(self._widths)

    def add(self, clips: int, rows: int, seconds: float) -> None:
        """Add the time of a pass."""
        if not (seconds > 0 and math.isfinite(seconds) and 1 <= clips <= rows):
            return
        self.passes += 1
        if self._plane is not None:
            was, self._slow = self._slow, seconds > SPIKE * self._plane_seconds(clips, rows)
            if self._slow and not was:
                return
        key = clips, rows // max(1, clips // 2)
        width = self._widths.get(key)
        if width is None:
            if len(self._widths) == WIDTHS:
                del self._widths[min(self._widths, key=lambda one: self._widths[one].last)]
            width = self._widths[key] = _WidthTimes(clips)
        all_rows, all_seconds = width.recent
        all_rows.append(rows)
        all_seconds.append(seconds)
        width.count, width.last = width.count + 1, self.passes
        width.rows, width.seconds = median_low(all_rows), median_low(all_seconds)
        if abs(width.seconds - width.fitted) > 0.02 * width.fitted or self.passes - self._fitted >= AGAIN:
            self._fitted = -1

    def measured(self) -> list[tuple[int, int, float, int]]:
        """Return clips, rows, median seconds and number of passes of each width, in this order."""
        return sorted((one.clips, int(one.rows), one.seconds, one.count) for one in self._widths.values())

    def since(self, clips: int, rows: int) -> float:
        """Return the number of passes since one of about this size."""
        width = rows / clips
        about = (w for w in self._widths.values() if 4 * abs(w.clips - clips) <= clips)
        last = max((w.last for w in about if abs(w.rows / w.clips - width) <= 0.15 * width), default=-math.inf)
        return self.passes - last

    def widest(self, clips: int) -> int:
        """Return rows per clip of the widest passes of about ``clips`` that recently occurred more than once."""
        near = (w for w in self._widths.values() if 4 * abs(w.clips - clips) <= clips and w.weight(self.passes) > 1)
        return int(max((w.rows / w.clips for w in near), default=1))

    def by_rows(self, clips: int) -> TimeCurve:
        """Return seconds by rows, for passes of ``clips``."""
        base, row, clip = self._fit()
        base += clip * clips
        near = (w for w in self._widths.values() if 8 * abs(w.clips - clips) <= clips)
        return self._corrected_curve([(w.rows * clips / w.clips, w) for w in near], base, row)

    def by_clips(self) -> TimeCurve:
        """Return seconds by clips, with one row each."""
        base, row, clip = self._fit()
        single = (w for w in self._widths.values() if 4 * (w.rows - w.clips) <= w.clips)
        return self._corrected_curve([(w.clips, w) for w in single], base, row + clip)

    # A width counts by its ratio to the plane, which its neighbours share.
    def _corrected_curve(self, near: list[tuple[float, _WidthTimes]], base: float, slope: float) -> TimeCurve:
        points: dict[float, tuple[float, float, float]] = {}
        for x, width in near:
            weight = width.weight(self.passes)
            ratio = width.seconds / self._plane_seconds(width.clips, width.rows)
            if weight < 3:
                ratio = min(1.5, max(0.67, ratio))
            if x not in points or weight > points[x][2]:
                points[x] = x, (base + slope * x) * ratio ** (weight / (weight + 0.5)), weight
        return TimeCurve(list(points.values()) or [(1, base + slope, 1.0)], slope)

    def _plane_seconds(self, clips: float, rows: float) -> float:
        base, row, clip = self._plane or (0.0, 0.0, 0.0)
        return base + row * rows + clip * clips

    def _fit(self) -> tuple[float, float, float]:
        if self._plane is None:
            self._plane = self._solve_plane()  # outliers show against a first plane only
            self._fitted = -1
        if self._fitted < 0:
            self._plane = self._solve_plane()
            self._fitted = self.passes
        return self._plane

    def _solve_plane(self) -> tuple[float, float, float]:
        """Return base, row and clip by least squares of relative errors, with ``ROW`` and ``CLIP`` as priors."""
        widths = list(self._widths.values())
        typical = median_low(width.seconds for width in widths)
        row, clip = TIME_OFF / (typical * ROW_OFF), TIME_OFF / (typical * CLIP_OFF)
        equations = [(-ROW * row, row, 0.0, 0.0), (-CLIP * clip, 0.0, clip, 0.0)]
        for width in widths:
            width.fitted = width.seconds
            off = abs(1 - self._plane_seconds(width.clips, width.rows) / width.seconds) if self._plane else 0.0
            sure = width.weight(self.passes) * min(1.0, 2 * TIME_OFF / off if off else 1.0)
            scale = math.sqrt(sure) / width.seconds
            equations.append((scale, scale * width.rows, scale * width.clips, scale * width.seconds))
        system, free = np.array(equations), [0, 1, 2]
        while True:
            part = np.linalg.lstsq(system[:, free], system[:, 3], rcond=None)[0]
            if len(free) == 1 or part.min() >= 0:
                break
            del free[int(part.argmin())]  # none of them is negative
        found = dict(zip(free, part.tolist(), strict=True))
        return found.get(0, 0.0), found.get(1, 0.0), found.get(2, 0.0)


def pass_times(points: list[tuple[int, float]]) -> TimeCurve:
    """Return T_p(rows) through measured ``(rows, time)`` points: linear between them, extrapolated by the last line.

    Raises:
        ValueError: no point, a row count twice or below 1, or a time that is not positive.
    """
    ordered = sorted(points)
    if not ordered or len({rows for rows, _ in ordered}) < len(ordered):
        raise ValueError("give every number of rows once")
    if ordered[0][0] < 1 or not all(0 < time < float("inf") for _, time in ordered):
        raise ValueError("rows must be at least 1 and times positive")
    (n0, t0), (n1, t1) = ordered[-2] if len(ordered) > 1 else (0, ordered[-1][1]), ordered[-1]
    if ordered[0][0] > 1:  # fewer rows than measured take as long
        ordered.insert(0, (1, ordered[0][1]))
    return TimeCurve([(rows, time, 1.0) for rows, time in ordered], max(0.0, (t1 - t0) / (n1 - n0)))


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


#: Batch sizes to choose from, and the initial one.
SIZES, START = (4, 8, 16, 32), 8
#: Least gain in tokens per second for twice as many clips: they take memory, and each of them ends later.
GAIN = 1.03
#: The size is chosen again after this many target passes at nearly full batch size.
PASSES = 32


def batch_rate(costs: PassCosts, clips: int) -> float:
    """Return a value proportional to the tokens per second of ``clips``; needs a pass of the target."""
    return clips / costs.round_seconds(clips)


class BatchSize:
    """The number of clips to decode at once, memory aside; doubles at most once per choice.

    It is the smallest batch for which twice as many clips gain less than ``GAIN``.

    Attributes:
        most: clips at once.
    """

    def __init__(self) -> None:
        self.most = START
        self._full = 0

    def add_pass(self, clips: int, costs: PassCosts) -> None:
        """Count a target pass of ``clips``, which ``costs`` has."""
        self._full += 4 * clips >= 3 * self.most
        if self._full == PASSES:
            self._full = 0
            enough = (n for n in SIZES[:-1] if batch_rate(costs, 2 * n) < GAIN * batch_rate(costs, n))
            self.most = min(next(enough, SIZES[-1]), 2 * self.most)
