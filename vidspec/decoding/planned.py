"""``schedule: plan``: drafter, pruning, window and schedule are chosen by measurement, among what is lossless.

The first clip is begun in turns with the whole video shown to the draft. After a few tokens its own beginning serves as
the test of every drafter at hand (:mod:`vidspec.decoding.trial`), the speed model ranks what can be built from them
(:mod:`vidspec.planning.plan`), and the clip goes on with the best that drafts in turns. Later clips take the chosen
way from their start. Whether the parallel schedule keeps its promise depends on what two workers take from each other,
so it is tried on whole clips, and what was faster there stays.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

import torch

from vidspec import profiles
from vidspec.decoding.asks import Asks, overheard
from vidspec.decoding.events import Prefilled, Round
from vidspec.decoding.run import Choice, InTurns, Run
from vidspec.decoding.setup import Setup
from vidspec.decoding.trace import Trace
from vidspec.decoding.trial import Trial, candidates
from vidspec.decoding.workers.run import SideBySide
from vidspec.decoding.workers.slot import DraftSlot
from vidspec.models.base import VideoLanguageModel
from vidspec.models.prompt import Question
from vidspec.planning.pace import Pace
from vidspec.planning.plan import Conditions, Plan, Way, decide, favoured, ways
from vidspec.profiles import Profile

__all__ = ["Planner", "beginning"]

#: Tokens of the first clip that are emitted before the drafters are judged by them, and how long a text is taken to be.
BEGINNING, EXPECTED = 32, 128
#: The parallel schedule is tried where at least this share of the best end-to-end speed-up is expected of it, ...
PROMISING = 0.9
#: ... on so many clips, and so many go in turns for comparison.
SAMPLES = 2
#: A clip that differs in pixels by more than this factor is measured anew.
ALIKE = 2.0


def beginning(profile: Profile) -> Profile:
    """The profile a plan begins with: in turns, the whole video, an adaptive window."""
    overrides: dict[str, object] = {"schedule.kind": "sequential", "draft.gamma": "auto"}
    if not profile.drafts_with_a_model:
        overrides |= {"draft.kind": "self", "prune.method": "uniform", "prune.alpha": 0.9}
    return profiles.override(profile, overrides)


class Planner:
    """What was learned from the clips so far, and the next clip's run.

    Args:
        profile: whose schedule is ``plan``.
        target, draft: loaded models; the draft is None where the target drafts for itself.
        slot: the draft's process; None where two workers make no sense.

    Attributes:
        plan: the last measurement's outcome; None before there is one.
        pace: chooses the windows of all clips that draft in turns.
        beginning: tokens of a clip that are emitted before the drafters are judged by them.
    """

    def __init__(
        self, profile: Profile, target: VideoLanguageModel, draft: VideoLanguageModel | None, slot: DraftSlot | None
    ) -> None:
        self.profile, self.target, self.draft, self.slot = profile, target, draft, slot
        self.beginning = BEGINNING
        self.starting = Setup.of(beginning(profile), target, draft, None)
        self.candidates = candidates(self.starting)
        needs = self.starting.needs.union(*(one.setup.needs for one in self.candidates))
        self.starting = replace(self.starting, needs=needs)
        self.forget()

    def forget(self) -> None:
        """As before the first clip."""
        self.plan: Plan | None = None
        self._conditions: Conditions | None = None
        self._setups: dict[str, Setup] = {}
        self._trials: dict[str, list[float]] = {}
        self._pixels = 0
        self._lengths: list[int] = []
        self.pace = Pace()
        self.starting = replace(self.starting, pace=self.pace)

    def run(self, path: str, question: Question, trace: Trace) -> Run:
        """The next clip."""
        pixels = question.clip.frames.size
        if self.plan is None or not 1 / ALIKE <= pixels / self._pixels <= ALIKE:
            self._pixels = pixels
            return _Beginning(self, InTurns(self.starting, path, question, trace, keep=True))
        way = self._next(self.plan)
        setup = self._setup(way)
        if way.schedule == "parallel" and self.slot is not None:
            return _Counted(self, way, SideBySide(setup, path, question, trace, self.slot), trace)
        return _Counted(self, way, InTurns(setup, path, question, trace), trace)

    @property
    def decided(self) -> bool:
        """Whether a plan was made that holds for the next clip, unless that is quite different."""
        return self.plan is not None

    @property
    def expected(self) -> int:
        """How long a text is taken to be, in tokens."""
        most = self.profile.generate.max_new_tokens
        return min(most, round(statistics.fmean(self._lengths)) if self._lengths else EXPECTED)

    def settle(self, trial: Trial, conditions: Conditions) -> Plan:
        """Rank what a trial found."""
        ranked = ways(trial.drafts, conditions)
        chosen, why = decide(ranked)
        self._conditions, self._setups, self._trials = conditions, {}, {}
        self.plan = Plan(tuple(ranked), chosen, why, trial.facts())
        return self.plan

    def finished(self, way: Way, seconds: float, tokens: int) -> None:
        """A clip is done; its cost is per token, the prompt counting as what plain decoding would give meanwhile."""
        self._lengths.append(tokens)
        found = self._conditions
        if found is not None:
            worth = tokens + found.first / found.verify(1)
            self._trials.setdefault(way.label, []).append(seconds / worth)

    def _next(self, plan: Plan) -> Way:
        """The chosen way, unless the parallel schedule's promise is being tested against the best in turns."""
        turns = favoured([way for way in plan.ways if way.schedule != "parallel"])
        parallel = [way for way in plan.ways if way.schedule == "parallel"]
        beside = favoured(parallel) if parallel else None
        if beside is None or beside.end_to_end < PROMISING * plan.chosen.end_to_end or beside.end_to_end < 1:
            return plan.chosen
        costs = {way.label: self._trials.get(way.label, []) for way in (beside, turns)}
        if len(costs[beside.label]) < SAMPLES:
            return beside
        if len(costs[turns.label]) < SAMPLES:
            return turns
        chosen = min((turns, beside), key=lambda way: min(costs[way.label]))
        if len(costs[beside.label]) == SAMPLES and "measured" not in plan.why:
            rates = [1 / min(costs[way.label]) for way in (beside, turns)]
            why = (
                f"{chosen.label}: {rates[0]:.0f} tokens/s end to end were measured at the same time, "
                f"{rates[1]:.0f} in turns"
            )
            self.plan = replace(plan, chosen=chosen, why=why)
        return chosen

    def _setup(self, way: Way) -> Setup:
        if way.label not in self._setups:
            profile = profiles.override(self.profile, dict(way.overrides))
            beside = profile.concurrent or not profile.drafts_with_a_model
            setup = Setup.of(profile, self.target, None if beside else self.draft, None)
            if setup.pace is not None:
                setup = replace(setup, pace=self.pace)
                self.teach(way)
            self._setups[way.label] = setup
        return self._setups[way.label]

    def teach(self, way: Way) -> None:
        """Tell the pace what the trial found."""
        if self._conditions is not None and way.tq is not None and way.beta is not None:
            self.pace.learn(self._conditions.verify, way.tq, way.beta)


class _Beginning:
    """The clip that is measured: begun in turns, gone on with in the best way that drafts a chain in turns."""

    def __init__(self, planner: Planner, run: InTurns) -> None:
        self.planner, self.inner = planner, run
        self.setup = planner.starting

    @property
    def choice(self) -> Choice:
        """In turns, and what the measurement says once it is done."""
        plan = self.planner.plan
        return Choice("sequential", plan.why if plan is not None else "measuring")

    @property
    def draft_forwards(self) -> int:
        return self.inner.draft_forwards

    def events(self) -> Asks[None]:
        tokens: list[int] = []
        spent: list[float] = []
        over = self.setup.limits.over
        measured = False
        last = 0.0

        def hear(event: Prefilled | Round) -> None:
            nonlocal measured, last
            if not isinstance(event, Round):
                return
            tokens.extend(event.token_ids)
            spent.append(event.elapsed - last - event.draft_s - event.verify_s)
            last = event.elapsed
            if not measured and self.planner.beginning <= len(tokens) and not over(tokens):
                measured = True
                with self.inner.trace.span("plan"):
                    self._measure(tokens, statistics.median(spent[1:]) if len(spent) > 1 else 0.0)

        yield from overheard(self.inner.events(), hear)
        self.planner._lengths.append(len(tokens))

    def _measure(self, tokens: list[int], overhead: float) -> None:
        run, planner = self.inner, self.planner
        lane = run.trace.by_worker().get("target", {})
        first = sum(
            lane.get(kind, 0.0) for kind in ("decode_video", "preprocess", "vision", "target_prefill", "signals")
        )
        trial = Trial(run, tokens, first=first, overhead=max(0.0, overhead), expected=planner.expected)
        slot = planner.slot
        device = planner.target.device
        threads, shared = None, None
        if slot is not None:
            if device.type == "cpu" and slot.target_threads is not None:
                threads = slot.target_threads, max(1, torch.get_num_threads() - slot.target_threads)
            shared = device.type != "cpu" and slot.device == device
        conditions = trial.measure(planner.candidates, threads, shared)
        plan = planner.settle(trial, conditions)
        chains = [way for way in plan.ways if way.schedule == "sequential" and way.topology == "chain"]
        best = favoured(chains) if chains else None
        job = run.job
        if best is not None and job is not None and job.window is not None:
            planner.teach(best)
            if best.name in trial.drafters:
                run.switch(trial.drafters[best.name])
        run.opening = None  # what was observed can be as large as the prompt


class _Counted:
    """A clip in a way that was chosen; what it cost is told to the planner."""

    def __init__(self, planner: Planner, way: Way, run: InTurns | SideBySide, trace: Trace) -> None:
        self.planner, self.way, self.inner, self.trace = planner, way, run, trace
        self.setup = run.setup
        why = planner.plan.why if planner.plan is not None else ""
        self.choice = Choice(self.setup.profile.schedule.kind, why)

    @property
    def draft_forwards(self) -> int:
        return self.inner.draft_forwards

    def events(self) -> Asks[None]:
        tokens = 0

        def hear(event: Prefilled | Round) -> None:
            nonlocal tokens
            tokens += len(event.token_ids) if isinstance(event, Round) else 0

        yield from overheard(self.inner.events(), hear)
        self.planner.finished(self.way, self.trace.elapsed(), tokens)
