"""A virtual machine on which clips draft in lockstep and one pass verifies them all."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vidspec.draft_length.pace import WindowController
from vidspec.draft_length.window import AcceptanceEstimate, DraftWindow, chain_tokens


@dataclass
class Machine:
    """True times of a pass by clips and rows; what is measured of them has noise and, rarely, is many times as long."""

    verify: Callable[[int, int], float]
    draft: Callable[[int, int], float]
    noise: float = 0.05
    spikes: float = 0.05
    seed: int = 0
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def measured(self, seconds: float) -> float:
        spike = self.rng.uniform(3, 10) if self.rng.random() < self.spikes else 1.0
        return seconds * (1 + abs(self.rng.gauss(0, self.noise))) * spike

    def passes(self, gammas: Sequence[int]) -> list[tuple[str, int, int, float]]:
        """Passes of a round: lane, clips, rows and true seconds."""
        clips = [sum(gamma >= g for gamma in gammas) for g in range(1, max(gammas) + 1)]
        rows = len(gammas) + sum(gammas)
        verify = self.verify(len(gammas), rows)
        return [*(("draft", n, n, self.draft(n, n)) for n in clips), ("target", len(gammas), rows, verify)]

    def rate(self, rounds: Sequence[Sequence[int]], betas: Sequence[float]) -> float:
        """Tokens per second that these rounds' windows give."""
        tokens = sum(sum(map(chain_tokens, betas, gammas)) for gammas in rounds)
        return tokens / sum(one[3] for gammas in rounds for one in self.passes(gammas))

    def best_fixed(self, betas: Sequence[float], highest: int = 16) -> float:
        """Tokens per second with the best window that is the same for all and stays."""
        return max(self.rate([[gamma] * len(betas)], betas) for gamma in range(highest + 1))

    def decode(
        self, pace: WindowController, windows: Sequence[DraftWindow], betas: Sequence[float], rounds: int
    ) -> list[list[int]]:
        """Rounds of independent acceptance; returns the windows of each."""
        seen = []
        unread = dict.fromkeys(windows, 0)
        for _ in range(rounds):
            rests = [window.rest() for window in windows]
            gammas = [0 if rest else window.gamma for rest, window in zip(rests, windows, strict=True)]
            seen.append(gammas)
            late = sum(unread[window] for window, gamma in zip(windows, gammas, strict=True) if gamma)
            for lane, clips, rows, seconds in self.passes(gammas):
                if late and lane == "draft":  # the first pass
                    rows, late = rows + late, 0
                    seconds = self.draft(clips, rows)
                pace.costs.add(lane, clips, rows, self.measured(seconds))
            for window, gamma in zip(windows, gammas, strict=True):
                unread[window] = 0 if gamma else unread[window] + 1
            for window, gamma, beta, rest in zip(windows, gammas, betas, rests, strict=True):
                if rest:
                    window.update(0, 0)
                    continue
                accepted = 0
                while accepted < gamma and self.rng.random() < beta:
                    accepted += 1
                window.update(gamma, accepted)
        return seen


def informed(verify: Callable[[int], float], tq: float, beta: float) -> WindowController:
    """A controller that has measured passes of one clip: the target's by rows, the draft's over one token."""
    pace = WindowController()
    for _ in range(3):
        for rows in (*range(1, 17), *range(17, pace.highest + 1, 4), pace.highest + 1):
            pace.costs.add("target", 1, rows, verify(rows))
        pace.costs.add("draft", 1, 1, tq)
    pace.prices.rounds = 3  # the first rounds are over
    pace._acceptance = AcceptanceEstimate(beta, 16)
    return pace


def bandwidth(draft_clip: float, seed: int = 0) -> Machine:
    """A GPU: passes cost what they read until rows need more; the draft's cost of a clip says how much it sees."""
    return Machine(lambda n, rows: max(6 + 0.6 * n, 0.05 * rows), lambda n, rows: 0.5 + draft_clip * n, seed=seed)


def processor(seed: int = 0) -> Machine:
    """A CPU: the second row costs more than the third, and clips and rows each their share."""
    return Machine(
        lambda n, rows: 2.8 + 0.45 * n + 0.08 * rows + 0.3 * (rows > n),
        lambda n, rows: 0.5 + 0.05 * n + 0.04 * rows,
        seed=seed,
    )


def compute(seed: int = 0) -> Machine:
    """Rows are free up to a point, then dear: many clips leave nothing over for windows."""
    return Machine(lambda n, rows: max(10.0, 2 + 0.6 * rows), lambda n, rows: 1 + 0.1 * n, seed=seed)
