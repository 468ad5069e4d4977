"""Parallel decoding of one clip: target and draft work at the same time (PEARL; ParallelVLM 4.2; HIPPO 5.2).

A clip whose draft process is lost is decoded again with a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vidspec.acceptance.base import Verdict
from vidspec.decoding.auto import ROWS, parallel_windows
from vidspec.decoding.prefill import Publish, TargetPrompt, prefill_target
from vidspec.decoding.protocol import (
    DraftSpans,
    OpenClip,
    Proposed,
    Verify,
    VisibleTokens,
    WorkerOrder,
)
from vidspec.decoding.scheduler import ParallelSettings, Scheduler, WorkerLost
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.setup import DecodingSetup
from vidspec.decoding.target import verify
from vidspec.decoding.workers.process import RemoteDraft
from vidspec.draft_length.costs import PassCosts
from vidspec.draft_length.window import WindowSize
from vidspec.drafting.base import Draft
from vidspec.engine.requests import Steps
from vidspec.events.events import InputsReleased, Round
from vidspec.models.request import CaptionRequest


def run_parallel(sequence: Sequence) -> Steps[None]:
    """Decode a clip; once more, with a new process, after ``Restarted`` if that of the draft died or hangs.

    Raises:
        WorkerLost: the second process died or hangs too.
    """
    try:
        yield from _run_attempt(sequence)
        return
    except WorkerLost as error:
        why = error.message  # not the error itself, whose traceback holds the attempt's cache
    sequence.restart(why)
    yield from _run_attempt(sequence)


def _run_attempt(sequence: Sequence) -> Steps[None]:
    """Decode a clip with the target's passes in this process and the draft in its own (``setup.slot``).

    ``InputsReleased`` follows the first round, as the draft has the frames by then too. The draft's lane of the trace
    is filled in at the end.

    Raises:
        WorkerLost: the draft's process died or hangs.
    """
    setup, trace, slot = sequence.setup, sequence.trace, sequence.setup.slot
    if setup.acceptance is None or slot is None:
        raise ValueError("the parallel schedule needs an acceptance rule and a process for the draft")
    overlap = setup.profile.schedule.prefill == "parallel"
    process = slot.ready()
    windows = parallel_windows(setup.profile, setup.costs)
    target = TargetSide(sequence)
    blind = not setup.profile.draft.has_video
    texts = {"\n": sequence.job.text_ids(setup.target.model, "\n")} if blind else {}
    job = sequence.job
    shown = CaptionRequest("", job.frames, job.prompt or "", job.system, earlier=job.earlier)
    draft = RemoteDraft(
        process,
        OpenClip(setup.profile, shown, setup.room, overlap, setup.limits.eos, texts),
        setup.profile.workers.timeout,
        trace,
    )

    def emit(settled: Round) -> None:
        if sequence.prefilled is None:
            assert target.prompt is not None
            sequence.emit(target.prompt.prefilled(setup.profile, trace.elapsed()))
        texts, rejected = sequence.add_text(settled.token_ids, settled.rejected)
        settled = replace(settled, elapsed=trace.elapsed() - sequence.text_start, texts=texts, rejected=rejected)
        sequence.emit_round(settled.token_ids, lambda: settled)
        if sequence.released is None:
            sequence.emit(InputsReleased(trace.elapsed()))

    try:
        with slot.sharing():
            if overlap:
                draft.begin()
            yield from run_rounds(Scheduler(_settings(setup, windows), windows), target, draft, emit, setup.costs)
        _add_draft_spans(sequence, (yield from draft.collect_spans()))
    except WorkerLost:
        slot.drop(process)  # the next clip starts a new one
        raise
    finally:
        draft.close()


def _settings(setup: DecodingSetup, windows: WindowSize) -> ParallelSettings:
    schedule, limits = setup.profile.schedule, setup.limits
    return ParallelSettings(
        max_new_tokens=limits.max_new_tokens,
        eos=limits.eos,
        stop_loops=limits.stop_loops,
        stopped=limits.stopped,
        overlap=schedule.prefill == "parallel",
        startup=None if schedule.startup == "fit" else windows.gamma,
        rows=ROWS,
        await_kept=setup.pruner is not None,
        late=setup.late,
    )


def _add_draft_spans(sequence: Sequence, draft_spans: DraftSpans | None) -> None:
    """Fill in the draft's lane of the trace."""
    if draft_spans is None:
        return
    sequence.draft_forwards = draft_spans.forwards
    origin = sequence.trace.origin
    for span in draft_spans.spans:
        about = span.about
        if span.kind == "draft":
            place = dict(about)
            emitted = any(step.holds(place["epoch"], place["position"]) for step in sequence.rounds)
            about += (("emitted", emitted),)
        sequence.trace.add(span.kind, "draft", span.start - origin, span.end - origin, about)


def run_rounds(
    scheduler: Scheduler,
    target: TargetSide,
    draft: RemoteDraft,
    emit: Callable[[Round], None],
    costs: PassCosts,
) -> Steps[None]:
    """Exchange messages and results between draft and target of one clip until its text ends.

    The draft's results that arrive during a target pass are handled before the pass's own.

    Args:
        scheduler: scheduler of this clip.
        target, draft: its workers.
        emit: called with each round.
        costs: receives the times of the draft's passes.
    """
    orders: list[Verify] = []

    def send(sends: list[WorkerOrder]) -> None:
        for message in sends:
            if isinstance(message, Verify):
                orders.append(message)
                continue
            if isinstance(message, VisibleTokens) and target.prompt is not None:
                message = replace(message, visual=len(target.prompt.prefix.visual))
            draft.send(message)

    def publish(kept: tuple[int, ...]) -> None:
        send(scheduler.receive(VisibleTokens(kept))[0])

    send(scheduler.start())
    while not scheduler.finished:
        if orders:
            answer = yield from target.answer(orders.pop(), publish)
            answers = [*draft.take(), answer]
        else:
            answers = yield from draft.receive()
        for result in answers:
            if isinstance(result, Proposed) and result.seconds:
                costs.add("draft", 1, 1, result.seconds)
            sends, settled = scheduler.receive(result)
            send(sends)
            if settled is not None:
                emit(settled)


class TargetSide:
    """Answers the messages to the target.

    Args:
        sequence: the clip.

    Attributes:
        prompt: the target's prompt; None before the clip is encoded.
    """

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.prompt: TargetPrompt | None = None
        self._emitted_count = 0

    def answer(self, order: Verify, publish: Publish) -> Steps[Verdict]:
        """Answer one message; ``publish`` may be called in the middle of a pass of the prefill."""
        if order.round:
            return (yield from self._verify(order))
        yield from self.read(publish)
        target, self._emitted_count = self.sequence.target, 1
        return Verdict((), target.first(), probabilities=target.probabilities)

    def read(self, publish: Publish) -> Steps[None]:
        """Prefill the target; publish the draft's visual tokens once their signals exist, or at the end."""
        self.prompt = yield from TargetPrompt.embed(self.sequence)
        yield from prefill_target(self.sequence, self.prompt, publish)
        self.prompt.release()

    def _verify(self, order: Verify) -> Steps[Verdict]:
        if order.prefix != self._emitted_count:
            raise RuntimeError(f"{order} does not follow {self._emitted_count} emitted tokens")
        verdict, _ = yield from verify(self.sequence, Draft.chain(order.window), order.round)
        self.sequence.trace.lap("rollback")
        self._emitted_count += verdict.accepted + 1
        return verdict
