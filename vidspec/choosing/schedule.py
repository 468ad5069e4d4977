"""``schedule: auto``: whether draft and target take turns or work at the same time, decided by trying both.

Two models on one memory-bound device gain nothing from working at the same time, two cores may or may not; no table
knows. So the first clip is begun with either schedule, in turn, and what was faster stays for all clips.
"""

from __future__ import annotations

from vidspec.decoding.run import Choice, InTurns, Run
from vidspec.decoding.setup import Setup
from vidspec.decoding.workers.run import SideBySide
from vidspec.decoding.workers.slot import DraftSlot
from vidspec.engine.asks import answered
from vidspec.models.prompt import Question
from vidspec.profile import profiles
from vidspec.profile.profiles import Profile
from vidspec.telling.events import Round
from vidspec.telling.trace import Trace

__all__ = ["Choice", "Chooser", "choose", "variants"]

#: Tokens of each trial, and how often each schedule has its turn; the first turn warms up.
TOKENS, TURNS = 32, 2


class Chooser:
    """The runs of a profile whose schedule is ``auto``: the first clip decides for all.

    Args:
        in_turns, side_by_side: the same profile under both schedules.
        slot: the draft's process.
    """

    def __init__(self, in_turns: Setup, side_by_side: Setup, slot: DraftSlot) -> None:
        self.in_turns, self.side_by_side, self.slot = in_turns, side_by_side, slot
        self.forget()

    def forget(self) -> None:
        """As before the first clip."""
        self._choice: Choice | None = None

    def most(self, batch: int | None) -> int | None:
        """How many clips at once, of ``batch`` allowed; the first one, which chooses, has no company."""
        return 1 if self._choice is None else batch

    def run(self, path: str, question: Question, trace: Trace, batch: int | None = 1, company: bool = False) -> Run:
        """The next clip's, in whatever company."""
        if self._choice is None:
            with trace.span("plan"):
                self._choice = choose(self.in_turns, self.side_by_side, self.slot, path, question)
        run: InTurns | SideBySide
        if self._choice.kind == "parallel":
            run = SideBySide(self.side_by_side, path, question, trace, self.slot)
        else:
            run = InTurns(self.in_turns, path, question, trace)
        run.choice = self._choice
        return run


def variants(profile: Profile) -> tuple[Profile, Profile]:
    """The two profiles that ``schedule: auto`` stands for: sequential and parallel."""
    return (
        profiles.override(profile, {"schedule.kind": "sequential", "schedule.prefill": "sequential"}),
        profiles.override(profile, {"schedule.kind": "parallel"}),
    )


def choose(in_turns: Setup, side_by_side: Setup, slot: DraftSlot, path: str, question: Question) -> Choice:
    """Begin a clip with either schedule and compare decoded tokens per second.

    Args:
        in_turns, side_by_side: the same profile under both.
        slot: the draft's process.
        path, question: the clip.
    """
    best: dict[str, float] = {"sequential": 0.0, "parallel": 0.0}
    for _ in range(TURNS):
        for kind, setup in (("sequential", in_turns), ("parallel", side_by_side)):
            short = setup.shortened(TOKENS)
            run = (
                InTurns(short, path, question, Trace())
                if kind == "sequential"
                else SideBySide(short, path, question, Trace(), slot)
            )
            rounds = [event for event in answered(run.events()) if isinstance(event, Round)]
            seconds = rounds[-1].elapsed
            emitted = sum(len(one.token_ids) for one in rounds) - 1
            best[kind] = max(best[kind], emitted / seconds if seconds > 0 else 0.0)
    kind = "parallel" if best["parallel"] > best["sequential"] else "sequential"
    why = (
        f"{kind}: {best['sequential']:.0f} tokens/s in turns, {best['parallel']:.0f} at the same time, "
        f"over {TOKENS} tokens of the first clip"
    )
    return Choice(kind, why)
