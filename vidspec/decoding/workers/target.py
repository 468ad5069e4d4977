"""The target's side: a thread of the main process that reads the prompt and verifies windows."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from vidspec.acceptance.base import Acceptance, for_clip
from vidspec.decoding.base import Target
from vidspec.decoding.protocol import Kept, PrefillTarget, Ready, Result, TargetMessage, Verdict, Verify
from vidspec.decoding.trace import Trace
from vidspec.drafting.base import Draft

if TYPE_CHECKING:
    from vidspec.models.base import Prefix

__all__ = ["Reading", "TargetThread"]

#: Reads the prompt; calls back with the kept indices as early as they are known, returns target and prompt.
Reading = Callable[[Callable[[tuple[int, ...]], None]], tuple[Target, "Prefix"]]


class TargetThread:
    """Serves one clip.

    Args:
        reading: reads the prompt.
        acceptance: judges a window.
        rng: CPU generator.
        trace: where its work and its waiting are timed.
        answer: takes every result, or the exception that ended the work.
        threads: of torch, on a CPU.

    Attributes:
        busy: whether a pass is under way.
        lost: whether that pass is not expected to end; it is not waited for then.
    """

    def __init__(
        self,
        reading: Reading,
        acceptance: Acceptance,
        rng: torch.Generator,
        trace: Trace,
        answer: Callable[[Result | BaseException], None],
        threads: int | None = None,
    ) -> None:
        self.reading, self.acceptance, self.rng, self.trace, self.answer = reading, acceptance, rng, trace, answer
        self.threads = threads
        self.prefix: Prefix | None = None
        self.kept: tuple[int, ...] | None = None
        self._target: Target | None = None
        self._emitted = 0
        self._orders: queue.SimpleQueue[TargetMessage | None] = queue.SimpleQueue()
        self._over = False
        self.busy = self.lost = False
        self._thread = threading.Thread(target=self._serve, name="vidspec-target", daemon=True)
        self._thread.start()

    def submit(self, message: TargetMessage) -> None:
        self._orders.put(message)

    def stop(self) -> None:
        """End after the pass that runs, if any; what waits is dropped."""
        self._over = True
        self._orders.put(None)
        # An abandoned clip may be collected, and so stopped, on any thread.
        if not self.lost and threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        try:
            if self.threads is not None:
                torch.set_num_threads(self.threads)  # of this thread; OpenMP counts by calling thread
            while True:
                self.busy = False
                begun = self.trace.now()
                order = self._orders.get()
                if order is None or self._over:
                    return
                self.busy = True
                if isinstance(order, Verify):
                    self.trace.add("wait", "target", begun, self.trace.now())
                    self.answer(self._verify(order))
                else:
                    self.answer(self._prefill(order))
        except BaseException as error:  # whatever it is, the one who waits must hear of it
            self.answer(error)

    def _prefill(self, _: PrefillTarget) -> Ready:
        begun = time.perf_counter()

        def publish(kept: tuple[int, ...]) -> None:
            self.kept = kept
            self.answer(Kept(kept))

        self._target, self.prefix = self.reading(publish)
        self.acceptance = for_clip(self.acceptance, self._target.prefill.visual_states)
        token = self._target.first()
        self._emitted = 1
        return Ready("target", time.perf_counter() - begun, token)

    def _verify(self, order: Verify) -> Verdict:
        target = self._target
        if target is None or order.prefix != self._emitted:
            raise RuntimeError(f"{order} does not follow {self._emitted} emitted tokens")
        begun = time.perf_counter()
        window = Draft(order.window, tuple(range(-1, len(order.window) - 1)))
        with self.trace.span("verify", about=(("round", order.round), ("rows", len(order.window) + 1))):
            passed = target.verify(window)
        with self.trace.span("accept"):
            verdict = self.acceptance(window, passed.logits, passed.hidden, self.rng)
        seconds = time.perf_counter() - begun
        with self.trace.span("rollback"):
            target.commit(verdict.path, verdict.token)
        self._emitted += verdict.accepted + 1
        return Verdict(order.round, verdict.accepted, verdict.token, len(order.window) + 1, seconds, verdict.loosened)
