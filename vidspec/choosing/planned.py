"""What profiles leave to measurement: ``schedule: plan`` drafter, pruning, window and schedule, among what is lossless;
``schedule: auto`` only whether the profile's own drafter takes turns with the target or works beside it.

For ``auto`` the first clip is begun both ways, in turn, and what was faster stays for all clips: two models on one
memory-bound device gain nothing from working at the same time, two cores may or may not; no table knows. The rest is
about ``plan``.

A clip that is captioned alone and is the first is decoded in turns with the whole video shown to the draft, for it may
be the only one. The next, or the first of several at once, begins the same. After a few tokens its own beginning serves
as the test of every drafter at hand (:mod:`vidspec.choosing.trial`), the speed model ranks what can be built from them
(:mod:`vidspec.choosing.plan`), and the clip goes on with the best that drafts in turns. Later clips take the chosen
way from their start. Whether the parallel schedule keeps its promise depends on what two workers take from each other,
so it is tried on whole clips, and what was faster there stays.

Where several clips may be decoded at once, the first one is measured without company and packed passes are timed on
copies of it; then way and number of clips are chosen together. The times of whole clips say nothing in company, where
each waits for the others: there the parallel schedule is taken only where the draft has an accelerator of its own (the
other cores of a CPU look at coming clips) and the model expects clearly more of it. What was chosen stays for the run,
until a clip that nobody accompanies is quite different; a clip in flight keeps its way. Texts that are too short to
judge drafters by are taken for a shorter beginning, and if that does not help either all go on as the first began.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from vidspec.choosing.plan import PLAIN, Conditions, Drafting, Plan, Way, decide, decide_folder, favoured, folder, ways
from vidspec.choosing.trial import Trial, candidates
from vidspec.config import profiles
from vidspec.config.profiles import Profile
from vidspec.decoding.run import Choice, Run, SequentialRun
from vidspec.decoding.setup import Setup
from vidspec.decoding.workers.run import ParallelRun
from vidspec.decoding.workers.slot import DraftSlot
from vidspec.draft_length.batch import SIZES
from vidspec.draft_length.pace import Pace
from vidspec.engine.requests import Steps, answered, overheard
from vidspec.events.events import Prefilled, Round
from vidspec.events.trace import Trace
from vidspec.models.base import VideoLanguageModel
from vidspec.models.image_captioner import ImageCaptioner
from vidspec.models.request import Request

__all__ = ["Planner"]

#: Tokens of the first clip that are emitted before the drafters are judged by them, and how long a text is taken to be.
BEGINNING, EXPECTED = 32, 128
#: The parallel schedule is tried where at least this share of the best end-to-end speed-up is expected of it, ...
PROMISING = 0.9
#: ... on so many clips, and so many go in turns for comparison.
SAMPLES = 2
#: In company it is not tried, and has to promise so many times the clips per second of the best in turns.
CLEARLY = 1.25
#: A clip that differs in pixels by more than this factor is measured anew.
ALIKE = 2.0
#: Where several clips may be decoded at once: the shortest beginning, and how many may end before theirs does.
SHORTEST, SHORT = 8, 2
#: For ``auto``: tokens of each trial, and how often each way has its turn; the first turn warms up.
TOKENS, TURNS = 32, 2

#: The ways of ``auto``, as they change its profile.
IN_TURNS: dict[str, object] = {"schedule.kind": "sequential", "schedule.prefill": "sequential"}
BESIDE: dict[str, object] = {"schedule.kind": "parallel"}


def beginning(profile: Profile) -> Profile:
    """The profile that clips begin with: in turns; for a plan with the whole video and an adaptive window."""
    if profile.chooses:
        return profiles.override(profile, IN_TURNS)
    overrides: dict[str, object] = {"schedule.kind": "sequential", "draft.gamma": "auto"}
    if not profile.drafts_with_a_model and not profile.drafts_for_free:
        overrides |= {"draft.kind": "self", "prune.method": "uniform", "prune.alpha": 0.9}
    return profiles.override(profile, overrides)


class _Found(NamedTuple):
    """What a trial found, for runs that allow ``batch`` clips at once, of which ``most`` fit into memory."""

    drafts: tuple[Drafting, ...]
    conditions: Conditions
    facts: Mapping[str, Any]
    batch: int | None
    most: int

    def tells(self, batch: int | None) -> bool:
        """Whether it is enough for runs that allow so many; None stands for any number."""
        return batch == 1 or self.batch is None or (batch is not None and batch <= self.batch)


class Planner:
    """What was learned from the clips so far, and the next clip's run.

    Args:
        profile: whose schedule is ``plan`` or ``auto``.
        target, draft: loaded models; the draft is None where the target drafts for itself.
        slot: the draft's process; None where two workers make no sense.
        describe: captions a frame for an ensemble's context of that kind.

    Attributes:
        plan: the last measurement's outcome; None before there is one.
        starting: with what a clip begins of which nothing is known.
        pace: chooses the windows of all clips that draft in turns, where they are chosen.
        beginning: tokens of a clip that are emitted before the drafters are judged by them.
    """

    def __init__(
        self,
        profile: Profile,
        target: VideoLanguageModel,
        draft: VideoLanguageModel | None,
        slot: DraftSlot | None,
        describe: ImageCaptioner | None = None,
    ) -> None:
        self.profile, self.target, self.draft, self.slot = profile, target, draft, slot
        self.starting = Setup.of(beginning(profile), target, draft, describe)
        self.candidates = candidates(self.starting) if profile.plans else []
        needs = self.starting.needs.union(*(one.setup.needs for one in self.candidates))
        self.starting = replace(self.starting, needs=needs)
        self.forget()

    def forget(self) -> None:
        """As before the first clip."""
        self.beginning = BEGINNING
        self.plan: Plan | None = None
        self._batch: int | None = 1  # what the plan is for
        self._found: _Found | None = None
        self._setups: dict[str, Setup] = {}
        self._trials: dict[str, list[float]] = {}
        self._pixels = 0
        self._lengths: list[int] = []
        self._short = 0
        #: Whether it pays to measure: of a clip that stays the only one it does not.
        self.worthwhile = False
        self._measuring = False
        self._taught = ""
        self.pace = Pace() if self.starting.pace else None
        self.starting = replace(self.starting, pace=self.pace)

    def most(self, batch: int | None) -> int | None:
        """How many clips at once, of ``batch`` allowed; None where that is to be chosen and nothing was measured."""
        plan = self._plan(batch)
        if self._measuring or (plan is None and not self._resigned(batch)):
            return 1
        return batch if batch is not None or plan is None or self.profile.chooses else plan.chosen.batch

    def run(
        self, request: Request, trace: Trace, batch: int | None = 1, company: bool = False
    ) -> tuple[Run, Steps[None]]:
        """The next clip, and its decoding, of which is learned.

        Args:
            request: the clip.
            trace: where everything is timed.
            batch: how many clips at once the run allows, None to choose.
            company: whether others are in flight now.
        """
        if self.profile.chooses and self.plan is None:
            with trace.span("plan"):
                self.plan = self._raced(request)
        pixels, plan = request.shown.frames.size, self._plan(batch)
        alike = self.profile.chooses or (plan is not None and 1 / ALIKE <= pixels / (self._pixels or pixels) <= ALIKE)
        if not (alike or company or (plan is None and self._resigned(batch))):
            if batch == 1 and not self.worthwhile:
                self.worthwhile = True
                return self._unplanned(request, trace, "the first clip, of which nobody knows whether others follow")
            self._pixels = pixels
            run, _ = self._unplanned(request, trace, "measuring")
            run.keep = True
            return run, self._measured(run, batch)
        if plan is None:
            why = "nothing was measured: the first texts are too short to judge drafters by"
            return self._unplanned(request, trace, why)
        way = self._next(plan) if batch == 1 and not self.profile.chooses else plan.chosen
        chosen = self._in(way, request, trace)
        chosen.choice = Choice(way.schedule, self.plan.why if self.plan else "")
        return chosen, self._counted(chosen, way, batch)

    def _unplanned(self, request: Request, trace: Trace, why: str) -> tuple[SequentialRun, Steps[None]]:
        run = SequentialRun(self.starting, request, trace)
        run.choice = Choice("sequential", why)
        return run, run.told()

    def _in(self, way: Way, request: Request, trace: Trace, tokens: int | None = None) -> Run:
        """A clip in this way, of at most so many tokens."""
        setup = self._setup(way)
        if tokens is not None:
            setup = setup.shortened(tokens)
        if way.schedule == "parallel" and self.slot is not None:
            return ParallelRun(setup, request, trace, self.slot)
        return SequentialRun(setup, request, trace)

    def _raced(self, request: Request) -> Plan:
        """The profile's two ways, both tried on the beginning of a clip, by decoded tokens per second."""
        turns = replace(PLAIN, name="its own drafter", schedule="sequential", overrides=IN_TURNS)
        both = turns, replace(turns, schedule="parallel", overrides=BESIDE)
        best = dict.fromkeys((way.schedule for way in both), 0.0)
        request = replace(request, held=None)  # nobody goes on from a trial
        for _ in range(TURNS):
            for way in both:
                events = answered(self._in(way, request, Trace(), TOKENS).events())
                rounds = [event for event in events if isinstance(event, Round)]
                emitted, seconds = sum(len(one.token_ids) for one in rounds) - 1, rounds[-1].elapsed
                best[way.schedule] = max(best[way.schedule], emitted / seconds if seconds > 0 else 0.0)
        chosen = max(both, key=lambda way: best[way.schedule])  # turns, if they are equal
        why = (
            f"{chosen.schedule}: {best['sequential']:.0f} tokens/s in turns, {best['parallel']:.0f} at the same time, "
            f"over {TOKENS} tokens of the first clip"
        )
        return Plan(both, chosen, why)

    @property
    def expected(self) -> int:
        """How long a text is taken to be, in tokens."""
        most = self.profile.generate.max_new_tokens
        return min(most, round(statistics.fmean(self._lengths)) if self._lengths else EXPECTED)

    def settle(self, trial: Trial, conditions: Conditions, batch: int | None = 1) -> Plan:
        """Rank what a trial found, for runs that allow so many clips at once."""
        self._found = _Found(tuple(trial.drafts), conditions, trial.facts(), batch, trial.most)
        self._setups, self._trials, self._short = {}, {}, 0
        self._taught = ""
        plan = self._decide(self._found, batch)
        if self.slot is not None and batch == 1 and self._next(plan).schedule == "parallel":
            self.slot.start()
        return plan

    def _plan(self, batch: int | None) -> Plan | None:
        """The plan for runs that allow so many clips at once, if what was measured tells."""
        if self.plan is None or batch == self._batch or self.profile.chooses:
            return self.plan
        if self._found is None or not self._found.tells(batch):
            return None
        return self._decide(self._found, batch)

    def _decide(self, found: _Found, batch: int | None) -> Plan:
        if batch == 1:
            ranked = ways(found.drafts, found.conditions)
            chosen, why = decide(ranked)
        else:
            at_once = [n for n in (1, 2, *SIZES) if n <= found.most] if batch is None else [min(batch, found.most)]
            ranked = self._in_company(folder(found.drafts, found.conditions, at_once))
            chosen, why = decide_folder(ranked)
        self._batch, self.plan = batch, Plan(tuple(ranked), chosen, why, found.facts)
        return self.plan

    def _in_company(self, found: Sequence[Way]) -> list[Way]:
        """Without the parallel schedule, where two workers share a device or it does not promise clearly more."""
        device, slot = self.target.device, self.slot
        own = slot is not None and "cpu" not in (device.type, slot.device.type) and slot.device != device
        best: dict[int, float] = {}
        for way in found:
            if way.schedule != "parallel":
                best[way.batch] = max(best.get(way.batch, 0.0), way.clips_per_s or 0.0)
        return [
            way
            for way in found
            if way.schedule != "parallel" or (own and (way.clips_per_s or 0.0) > CLEARLY * best[way.batch])
        ]

    def _resigned(self, batch: int | None) -> bool:
        """Whether clips in company are begun without a plan, as their texts are too short for one."""
        return batch != 1 and self._short >= SHORT

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
            setup = Setup.of(profile, self.target, None if beside else self.draft, self.starting.describe)
            # One for all clips: it may remember their texts.
            known = next((one.setup.drafter for one in self.candidates if one.name == way.name), None)
            setup = replace(setup, drafter=known or setup.drafter)
            if setup.pace is not None:
                setup = replace(setup, pace=self.pace)
                self.teach(way)
            self._setups[way.label] = setup
        return self._setups[way.label]

    def teach(self, way: Way) -> None:
        """Tell the pace what the trial found of another drafter than the one it hears of; what it heard is void."""
        one = next((one for one in self._found.drafts if one.name == way.name), None) if self._found else None
        if self.pace is None or self._found is None or one is None or way.beta is None or way.name == self._taught:
            return
        self._taught = way.name
        self.pace.learn(self._found.conditions.verify, one.tq, way.beta)

    def _counted(self, run: Run, way: Way, batch: int | None) -> Steps[None]:
        """A clip in a way that was chosen; its cost is per token, the prompt counting as what plain decoding would give
        meanwhile."""
        yield from run.told()
        tokens = sum(len(one.token_ids) for one in run.rounds)
        self._lengths.append(tokens)
        if self._found is not None and batch == 1:
            found = self._found.conditions
            worth = tokens + found.first / found.verify(1)
            self._trials.setdefault(way.label, []).append(run.trace.elapsed() / worth)

    def _measured(self, run: SequentialRun, batch: int | None) -> Steps[None]:
        """A clip that is measured: begun in turns, gone on with in the best way that drafts a chain in turns."""
        measured = False

        def hear(event: Prefilled | Round) -> None:
            nonlocal measured
            if measured:
                return
            tokens = [token for one in run.rounds for token in one.token_ids]
            if self.beginning <= len(tokens) and not run.setup.limits.over(tokens):
                measured, self._measuring = True, False
                with run.trace.span("plan"):
                    self._measure(run, tokens, batch)

        self._measuring = True
        try:
            yield from overheard(run.told(), hear)
        finally:
            if not measured:
                self._measuring = False
        tokens = sum(len(one.token_ids) for one in run.rounds)
        self._lengths.append(tokens)
        if not measured and batch != 1:
            self._short += 1
            self.beginning = max(SHORTEST, min(self.beginning, tokens // 2))

    def _measure(self, run: SequentialRun, tokens: list[int], batch: int | None) -> None:
        lane = run.trace.by_worker().get("target", {})
        opened = sum(lane.get(kind, 0.0) for kind in ("decode_video", "preprocess"))
        spent = [
            one.elapsed - before.elapsed - one.draft_s - one.verify_s
            for before, one in zip(run.rounds, run.rounds[1:], strict=False)
        ]
        slot, device = self.slot, self.target.device
        trial = Trial(
            run,
            tokens,
            first=opened + sum(lane.get(kind, 0.0) for kind in ("vision", "target_prefill", "signals")),
            overhead=max(0.0, statistics.median(spent)) if spent else 0.0,
            expected=self.expected,
            ahead=opened,
            batch=SIZES[-1] if batch is None else batch,
        )
        threads, shared = None, None
        if slot is not None:
            if device.type == "cpu" and slot.target_threads is not None:
                threads = slot.target_threads, max(1, torch.get_num_threads() - slot.target_threads)
            shared = device.type != "cpu" and slot.device == device
        plan = self.settle(trial, trial.measure(self.candidates, threads, shared), batch)
        run.choice = Choice("sequential", plan.why)
        chains = [
            way
            for way in plan.ways
            if way.batch == plan.chosen.batch and way.schedule == "sequential" and way.topology == "chain"
        ]
        best = favoured(chains) if chains else None
        if best is not None and run.window is not None:
            self.teach(best)
            if best.name in trial.drafters:
                run.switch(trial.drafters[best.name])
        run.context = None  # what was observed can be as large as the prompt
