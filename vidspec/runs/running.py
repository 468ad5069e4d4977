"""A run in progress: what is left to do goes to captioners here or elsewhere, and each result into the outputs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from vidspec.events.events import LoopLoad
from vidspec.events.observer import CombinedObserver, RunObserver
from vidspec.events.tally import Tally, counted
from vidspec.runs.executors.base import Executor
from vidspec.runs.planning import RunPlan
from vidspec.runs.remaining import RemainingJobs, caption_remaining, is_left, plan_clips, plan_shards
from vidspec.runs.reporter import RunReporter
from vidspec.runs.run import exit_code

if TYPE_CHECKING:
    from vidspec.display.pages.report import ReportFile
    from vidspec.runs.job import Job

__all__ = ["Run"]


class _WaitingTime(RunObserver):
    """Keeps the share of the time in which the models wait for frames."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def load(self, load: LoopLoad) -> None:
        self._tally.waited = load.reading


class Run(AbstractContextManager["Run"]):
    """Carries out a plan: a context in which the results are iterated once, each after its record was written.

    Its outputs are opened at once, before any model is loaded, and hold the standard output of that moment; the end of
    the context closes them.

    Args:
        plan: the run.
        reporter: receives notes, and brings observers.

    Attributes:
        tally: counts so far.
        store: where records go.
        ran_here: True if a captioner of this process captioned clips.

    Raises:
        UsageError: an output cannot be written, or another run is writing it.
    """

    def __init__(self, plan: RunPlan, reporter: RunReporter | None = None) -> None:
        self.plan, self.reporter = plan, reporter or RunReporter()
        self.tally = Tally(total=len(plan.entries))
        self.ran_here = False
        self._page: ReportFile | None = None
        self._stack = ExitStack()
        self._codes: set[int] = set()
        self._complete = False
        self.store = plan.open_store()
        self._stack.callback(self._close_store)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._page is not None and isinstance(error, KeyboardInterrupt | GeneratorExit):
            self._page.interrupted = True
        self._stack.close()

    def __iter__(self) -> Iterator[Job]:
        plan, tally = self.plan, self.tally
        jobs: RemainingJobs
        if self.store.part_files is not None:
            tally.total = 0
            jobs = plan_shards(plan.entries, self.store, plan.spec, plan.profile, tally)
        else:
            jobs = plan_clips(plan.entries, self.store, plan.spec, plan.profile, tally)
        self._report_earlier()
        if jobs:
            executor, observer = self._start(jobs)
            results = caption_remaining(
                jobs, executor, self.store, plan.spec, plan.profile, tally, observer, self._codes
            )
            self._stack.callback(results.close)  # before the captioner is closed
            yield from results
        self._complete = self.tally.stopped is None

    @property
    def file_errors(self) -> list[tuple[str, Exception]]:
        """Errors of the report page, with the option; complete after the exit."""
        return [("--report", error) for error in (self._page.errors if self._page else ())]

    @property
    def exit_code(self) -> int:
        """Exit code over all clips of the run: 0, 1 if some failed, 3 if a model or device was unavailable."""
        code = max(self._codes, default=0)
        if self.failures:
            code = max(code, 1)
        return max(code, exit_code([error for _, error in self.file_errors]))

    @property
    def failures(self) -> int:
        """Clips that failed now or before, and inputs that could not be read."""
        return self.tally.failed + self.tally.earlier_failed + len(self.plan.found.unreadable)

    def _close_store(self) -> None:
        for line in self.store.close(self.plan.entries, complete=self._complete):
            self.reporter.kept(line)
        self.reporter.closed(self.tally)

    def _report_earlier(self) -> None:
        others = self.store.captions.others_count({self.plan.settings_of(entry) for entry in self.plan.entries})
        if others:
            made = f"{counted(others, 'earlier record')} made with other settings"
            self.reporter.info(f"{made}: kept (--overwrite starts over)")
        count = self.tally.earlier_failed
        if done := self.tally.earlier + count:
            failed = f", {count} of them failed (--retry-failed tries them again)" if count else ""
            self.reporter.info(f"{done} of {counted(self.tally.total, 'clip')} done before{failed}")

    def _start(self, jobs: RemainingJobs) -> tuple[Executor, RunObserver]:
        """Return the executor of the remaining clips, and the observer of the run."""
        spec, stack = self.plan.spec, self._stack
        observers: list[RunObserver] = []
        observer = CombinedObserver(observers)
        executor: Executor = lambda jobs: iter(())  # noqa: E731
        if is_left(jobs):
            fetches = self.reporter.begin(self.plan)
            self.ran_here = not spec.is_remote
            executor = self._remote() if spec.is_remote else self._local(jobs, observers, fetches=fetches)
            observers += self.reporter.clip_observers(stack, self, self.tally)
        if spec.trace is not None:
            from vidspec.runs.trace_file import TraceCollector

            traces = TraceCollector(spec.trace)
            stack.callback(traces.write)
            observers.append(traces)
        observers += self.reporter.result_observers(self.plan)
        return executor, observer

    def _local(self, left: RemainingJobs, observers: list[RunObserver], *, fetches: bool) -> Executor:
        """Return the executor of a captioner in this process; adds the observers that draw pages."""
        from vidspec.runs.executors.local import caption_locally, readers_for

        plan, stack, spec = self.plan, self._stack, self.plan.spec
        readers = readers_for(spec, plan.profile, len(left) if isinstance(left, list) else None)
        for reader in readers:  # reader processes start while models load
            stack.callback(reader.close)
            reader.start()
        began = time.monotonic()
        with self.reporter.loading(fetches=fetches):
            from vidspec.captioner import Captioner

            captioner = stack.enter_context(Captioner.from_profile(plan.profile))
            captioner.client.return_probs = plan.spec.report is not None
            captioner.client.estimates_speedup = self.reporter.estimates_speedup and not (
                plan.found.several or spec.baseline
            )
        self.reporter.loaded(captioner, time.monotonic() - began)
        observers.append(_WaitingTime(self.tally))
        if spec.report is not None:
            from vidspec.display.pages.report import ReportFile

            self._page = ReportFile(spec.report, plan.profile)
            stack.callback(self._page.write)
            observers.append(self._page)  # before the panel, which is closed when a page is written
        return partial(
            caption_locally,
            captioner,
            spec=spec,
            observer=CombinedObserver(observers),
            readers=readers,
            total=len(plan.entries),
        )

    def _remote(self) -> Executor:
        """Return the executor of several captioners, each in its own process, here or on a Ray cluster."""
        from vidspec.runs.executors.base import CaptionerFactory
        from vidspec.runs.executors.devices import device_groups
        from vidspec.runs.executors.ray import RayExecutor
        from vidspec.runs.executors.replicas import ReplicaExecutor

        plan, spec = self.plan, self.plan.spec
        groups = device_groups(spec.replicas, plan.profile, ray=spec.engine == "ray", address=spec.address)
        executor = RayExecutor if spec.engine == "ray" else ReplicaExecutor
        return executor(CaptionerFactory(plan.profile.model_dump()), spec, groups)
