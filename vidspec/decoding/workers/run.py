"""One clip through target and draft that work at the same time (PEARL; ParallelVLM 4.2; HIPPO 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from vidspec.decoding.base import Target
from vidspec.decoding.parallel import Scheduler, Settings, WorkerLost
from vidspec.decoding.protocol import Kept, PrefillTarget, Send, TargetMessage, Verify
from vidspec.decoding.run import Run
from vidspec.decoding.setup import ROWS, Setup, prefilled
from vidspec.decoding.workers.messages import Spans
from vidspec.decoding.workers.remote import RemoteDraft
from vidspec.decoding.workers.slot import DraftSlot
from vidspec.decoding.workers.target import Publish, TargetSide
from vidspec.draft_length.base import WindowSize
from vidspec.draft_length.gamma import AutoGamma, FixedGamma
from vidspec.engine.requests import Steps, timed
from vidspec.events.events import Prefilled, Round
from vidspec.events.trace import Trace
from vidspec.models.base import Prefix
from vidspec.models.request import Request
from vidspec.pruning.base import ranked, taps_for

__all__ = ["ParallelRun", "rounds"]


class ParallelRun(Run):
    """The target in this process, by passes that it asks for, the draft in its own.

    Args:
        setup: models and parts; its draft is unused.
        request: frames and prompt.
        trace: where everything is timed; the draft's lane is filled in at the end.
        slot: the draft's process.
    """

    draft_forwards = 0

    def __init__(self, setup: Setup, request: Request, trace: Trace, slot: DraftSlot) -> None:
        super().__init__(setup, request, trace)
        self.slot = slot
        self._prefix: Prefix | None = None
        self._kept: torch.Tensor | None = None
        self._signals: tuple[tuple[str, bytes], ...] = ()

    def events(self) -> Steps[None]:
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
            late=setup.late,
        )
        rng = torch.Generator().manual_seed(self.seed)
        target = TargetSide(partial(self._read, rng), setup.acceptance, rng, trace)
        blind = not setup.profile.shows_the_video
        texts = {"\n": self.request.text_ids(setup.target.model, "\n")} if blind else {}
        draft = RemoteDraft(
            process,
            partial(process.open, setup.profile, self.request, setup.room, eager=overlap, texts=texts),
            setup.profile.workers.timeout,
            lambda: len(self._prefix.visual) if self._prefix is not None else None,
            trace,
        )
        said: list[Round] = []
        begun = 0.0

        def told(one: Round) -> Iterator[Prefilled | Round]:
            nonlocal begun
            if not said:
                begun = trace.elapsed()
                yield self._prefilled(begun)
            said.append(one)
            yield replace(one, elapsed=trace.elapsed() - begun)

        try:
            with slot.sharing():
                if overlap:
                    draft.begin()
                yield from rounds(Scheduler(settings, windows), target, draft, told)
            slot.gamma = windows.gamma
            self._account((yield from draft.account()), said)
        except WorkerLost:
            slot.drop(process)  # and whoever comes next gets a fresh one
            raise
        finally:
            draft.close()

    def _account(self, done: Spans | None, said: Sequence[Round]) -> None:
        """Fill in the draft's lane."""
        if done is None:
            return
        self.draft_forwards = done.forwards
        for span in done.spans:
            about = span.about
            if span.kind == "draft":
                place = dict(about)
                about += (("emitted", any(one.holds(place["epoch"], place["position"]) for one in said)),)
            self.trace.add(span.kind, "draft", span.start - self.trace.origin, span.end - self.trace.origin, about)

    def _read(self, rng: torch.Generator, publish: Publish) -> Steps[Target]:
        """The target's prompt; what the draft may see is published as early as its signals exist, or behind it."""
        setup, trace = self.setup, self.trace
        prefix = self._prefix = yield from setup.read(self.request, trace)
        taps = taps_for(setup.needs, prefix)

        def choose() -> None:
            self._kept = setup.kept(prefix, taps, trace, "target")
            publish(tuple(self._kept.tolist()))

        if setup.pruner is not None and not setup.late:
            if taps is None:
                choose()
            else:
                taps.ready = choose
        read, _ = yield from timed(trace, "target_prefill", "target", setup.prefill, prefix, taps)
        self._signals = ranked(taps)
        if setup.late:
            choose()
        if setup.pruner is not None and self._kept is None:
            raise RuntimeError("the prompt was read and the draft was never given its visual tokens")
        return Target(setup.target, read, setup.sampling, rng, confident=self.request.confident)

    def _prefilled(self, elapsed: float) -> Prefilled:
        if self._prefix is None:
            raise RuntimeError("a round came before the prompt was read")
        everything = torch.arange(len(self._prefix.visual) if self.setup.profile.shows_the_video else 0)
        kept = everything if self._kept is None else self._kept
        return prefilled(self.setup.profile, self._prefix, kept, elapsed, signals=self._signals)


def rounds(
    scheduler: Scheduler,
    target: TargetSide,
    draft: RemoteDraft,
    told: Callable[[Round], Iterable[Any]],
) -> Steps[None]:
    """Carry messages and answers between the two of one clip until its text ends.

    The draft's answers gather while the target has a pass; they come before the pass's own.

    Args:
        scheduler: of this clip.
        target, draft: its workers.
        told: events that make a round known.
    """
    orders: list[TargetMessage] = []

    def tell(sends: Sequence[Send]) -> None:
        for _, message in sends:
            if isinstance(message, (PrefillTarget, Verify)):
                orders.append(message)
            else:
                draft.send(message)

    def publish(kept: tuple[int, ...]) -> None:
        tell(scheduler.receive(Kept(kept))[0])

    tell(scheduler.start())
    while not scheduler.finished:
        if orders:
            answer = yield from target.answer(orders.pop(), publish)
            answers = [*draft.mailbox.take(), answer]
        else:
            answers = yield from draft.hear()
        for result in answers:
            sends, settled = scheduler.receive(result)
            tell(sends)
            if settled is not None:
                yield from told(settled)


def _windows(setup: Setup, start: int) -> WindowSize:
    gamma = setup.profile.draft.gamma
    if gamma != "auto":
        return FixedGamma(gamma)
    # With small windows and long accepted runs, rounding up pays (ParallelVLM App. A).
    return AutoGamma(start, "up" if setup.profile.drafts_with_the_target else "down")
