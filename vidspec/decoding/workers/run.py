"""One clip through target and draft that work at the same time (PEARL; ParallelVLM 4.2; HIPPO 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, TypeAlias

import torch

from vidspec.acceptance.base import Acceptance
from vidspec.decoding.base import Target
from vidspec.decoding.events import Prefilled, Round
from vidspec.decoding.parallel import Outcome, Scheduler, Settings, drive
from vidspec.decoding.run import Choice
from vidspec.decoding.setup import ROWS, Setup, prefilled
from vidspec.decoding.trace import Trace
from vidspec.decoding.workers.pair import Pair
from vidspec.decoding.workers.slot import DraftSlot
from vidspec.decoding.workers.target import TargetThread
from vidspec.errors import GenerationError
from vidspec.models.base import Prefix
from vidspec.models.prompt import Question
from vidspec.planning.base import WindowSize
from vidspec.planning.gamma import AutoGamma, FixedGamma
from vidspec.pruning.base import taps_for

__all__ = ["SideBySide"]

#: How a clip ends: with its last token; left alone by whoever wanted it, or failed for a reason of its own; or with a
#: worker that cannot go on.
Ending: TypeAlias = Literal["finished", "abandoned", "broken"]


class SideBySide:
    """The target in a thread of this process, the draft in its own.

    Args:
        setup: models and parts; its draft is unused.
        path: for messages.
        question: frames and prompt.
        trace: where everything is timed; the draft's lane is filled in at the end.
        slot: the draft's process.

    Attributes:
        choice: how the schedule was chosen; None where the profile names it.
    """

    choice: Choice | None = None

    def __init__(self, setup: Setup, path: str, question: Question, trace: Trace, slot: DraftSlot) -> None:
        self.setup, self.path, self.question, self.trace, self.slot = setup, path, question, trace, slot
        self.draft_forwards = 0
        self._prefix: Prefix | None = None

    def events(self) -> Iterator[Prefilled | Round]:
        setup, trace, slot = self.setup, self.trace, self.slot
        if setup.acceptance is None:
            raise ValueError("the parallel schedule needs an acceptance rule")
        schedule = setup.profile.schedule
        overlap = schedule.prefill == "parallel"
        process = slot.ready()
        windows = _windows(setup, slot.gamma)
        limits = setup.limits
        settings = Settings(
            max_new_tokens=limits.max_new_tokens,
            eos=limits.eos,
            stop_loops=limits.stop_loops,
            overlap=overlap,
            startup=None if schedule.startup == "fit" else windows.gamma,
            rows=ROWS,
            await_kept=setup.pruner is not None,
        )
        rng = torch.Generator().manual_seed(setup.profile.generate.seed)
        thread = partial(self._thread, setup.acceptance, rng)
        pair = Pair(
            thread,
            process,
            partial(self._open, process.open, overlap),
            eager=overlap,
            timeout=setup.profile.workers.timeout,
            visual=lambda: len(self._prefix.visual) if self._prefix is not None else None,
        )
        outcomes: list[Outcome] = []
        begun: float | None = None
        ending: Ending = "abandoned"
        try:
            for outcome in drive(Scheduler(settings, windows), pair):
                outcomes.append(outcome)
                if begun is None:
                    begun = trace.elapsed()
                    yield self._prefilled(pair.target, begun)
                yield _round(outcome, trace.elapsed() - begun)
            ending = "finished"
        except GenerationError as error:
            ending = "broken" if error.kind == "worker" else "abandoned"
            raise
        except KeyboardInterrupt:
            ending = "broken"  # who interrupts wants no process left
            raise
        finally:
            self._close(pair, ending, outcomes)
            slot.gamma = windows.gamma if ending == "finished" else slot.gamma

    def _close(self, pair: Pair, ending: Ending, outcomes: list[Outcome]) -> None:
        """Stop both workers. A draft in good health stays for the next clip; a finished clip gets its draft's lane."""
        if ending == "broken":
            try:
                pair.target.stop()
            finally:
                if pair.is_current:
                    self.slot.drop(pair.draft)  # the next clip gets a fresh one
            return
        done = pair.close(wait=ending == "finished")
        pair.target.stop()
        if done is None:
            return
        self.draft_forwards = done.forwards
        for span in done.spans:
            about = span.about
            if span.kind == "draft":
                place = dict(about)
                about += (("emitted", any(_holds(one, place["epoch"], place["position"]) for one in outcomes)),)
            self.trace.add(span.kind, "draft", span.start - self.trace.origin, span.end - self.trace.origin, about)

    def _open(self, begin: Callable[..., int], eager: bool, listener: Callable[..., None]) -> int:
        return begin(self.setup.profile, self.question, self.setup.room, eager=eager, listener=listener)

    def _thread(self, acceptance: Acceptance, rng: torch.Generator, answer: Callable[..., None]) -> TargetThread:
        return TargetThread(partial(self._read, rng), acceptance, rng, self.trace, answer, self.slot.target_threads)

    def _read(self, rng: torch.Generator, publish: Callable[[tuple[int, ...]], None]) -> tuple[Target, Prefix]:
        """The target's prompt; what the draft may see is published as early as its signals exist."""
        setup, trace = self.setup, self.trace
        prefix = self._prefix = setup.read(self.path, self.question, trace)
        taps = taps_for(setup.needs, prefix)

        def choose() -> None:
            publish(tuple(setup.kept(prefix, taps, trace, "target").tolist()))

        if setup.pruner is not None and taps is None:
            choose()
        elif setup.pruner is not None and taps is not None:
            taps.ready = choose
        with trace.span("target_prefill"):
            read = setup.prefill(prefix, taps)
        return Target(setup.target, read, setup.sampling, rng), prefix

    def _prefilled(self, target: TargetThread, elapsed: float) -> Prefilled:
        prefix = self._prefix
        if prefix is None:
            raise RuntimeError("a round came before the prompt was read")
        everything = torch.arange(len(prefix.visual) if self.setup.profile.shows_the_video else 0)
        kept = everything if target.kept is None else torch.tensor(target.kept, dtype=torch.long)
        return prefilled(self.setup.profile, prefix, kept, elapsed)


def _windows(setup: Setup, start: int) -> WindowSize:
    gamma = setup.profile.draft.gamma
    if gamma != "auto":
        return FixedGamma(gamma)
    # With small windows and long accepted runs, rounding up pays (ParallelVLM App. A).
    return AutoGamma(start, "up" if setup.profile.draft.kind == "self" else "down")


def _round(outcome: Outcome, elapsed: float) -> Round:
    return Round(
        outcome.token_ids,
        outcome.origins,
        drafted=outcome.drafted,
        accepted=outcome.accepted,
        elapsed=elapsed,
        draft_s=outcome.draft_s,
        verify_s=outcome.verify_s,
        mode=outcome.mode,
        gamma=outcome.gamma,
        wasted=outcome.wasted,
        aborted=outcome.aborted,
        loosened=outcome.loosened,
    )


def _holds(outcome: Outcome, epoch: int, position: int) -> bool:
    """Whether the round emitted what the draft proposed for a position in an epoch."""
    return outcome.epoch == epoch and outcome.start <= position < outcome.start + outcome.accepted
