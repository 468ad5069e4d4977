"""One clip through target and draft that work at the same time (PEARL; ParallelVLM 4.2; HIPPO 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from vidspec.acceptance.base import Acceptance
from vidspec.decoding.base import Target
from vidspec.decoding.events import Prefilled, Round
from vidspec.decoding.parallel import Outcome, Scheduler, Settings, drive
from vidspec.decoding.setup import ROWS, Setup, prefilled
from vidspec.decoding.trace import Kind, Trace
from vidspec.decoding.workers.pair import Pair
from vidspec.decoding.workers.slot import DraftSlot
from vidspec.decoding.workers.target import TargetThread
from vidspec.models.base import Prefix
from vidspec.models.prompt import Question
from vidspec.planning.base import WindowSize
from vidspec.planning.gamma import AutoGamma, FixedGamma
from vidspec.pruning.base import taps_for

__all__ = ["SideBySide"]


class SideBySide:
    """The target in a thread of this process, the draft in its own.

    Args:
        setup: models and parts; its draft is unused.
        path: for messages.
        question: frames and prompt.
        trace: where everything is timed; the draft's lane is filled in at the end.
        slot: the draft's process.
    """

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
        settings = Settings(
            max_new_tokens=setup.profile.generate.max_new_tokens,
            eos=setup.target.model.eos,
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
        finished = False
        begun: float | None = None
        try:
            for outcome in drive(Scheduler(settings, windows), pair):
                if begun is None:
                    begun = trace.now()
                    yield self._prefilled(pair.target, begun)
                yield _round(outcome, trace.now() - begun)
            finished = True
        finally:
            pair.target.stop()
            done = process.finish() if finished else None
            if done is None:
                slot.drop()  # the next clip gets a fresh one
            else:
                slot.gamma = windows.gamma
                self.draft_forwards = done.forwards
                for kind, start, end in done.spans:
                    trace.add(_kind(kind), "draft", start - trace.origin, end - trace.origin)

    def _open(self, begin: Callable[..., int], eager: bool, listener: Callable[..., None]) -> int:
        return begin(self.question, self.setup.room, eager=eager, listener=listener)

    def _thread(self, acceptance: Acceptance, rng: torch.Generator, answer: Callable[..., None]) -> TargetThread:
        return TargetThread(partial(self._read, rng), acceptance, rng, self.trace, answer, self.slot.target_threads)

    def _read(self, rng: torch.Generator, publish: Callable[[tuple[int, ...]], None]) -> tuple[Target, Prefix]:
        """The target's prompt; what the draft may see is published as early as its signals exist."""
        setup, trace = self.setup, self.trace
        prefix = self._prefix = setup.read(self.path, self.question, trace)
        taps = taps_for(setup.needs, prefix)

        def choose() -> None:
            publish(tuple(setup.kept(prefix, taps, trace).tolist()))

        if setup.pruner is not None and taps is None:
            choose()
        elif setup.pruner is not None and taps is not None:
            taps.ready = choose
        with trace.span("target_prefill"):
            state = setup.target.prefill(prefix, setup.room, taps)
        return Target(setup.target, state, setup.sampling, rng), prefix

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
    )


def _kind(name: str) -> Kind:
    return name  # type: ignore[return-value]
