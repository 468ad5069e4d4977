"""The parallel schedule: target and draft work at the same time (PEARL; ParallelVLM 4.2; HIPPO 5.2).

Its rounds are those of :class:`~vidspec.decoding.scheduler.Scheduler`; workers make the passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec.schedule import Schedule, schedules

if TYPE_CHECKING:
    from vidspec.decoding.sequence import Sequence
    from vidspec.engine.requests import Steps


@schedules.register("parallel")
class Parallel(Schedule):
    concurrent = True

    @staticmethod
    def run(sequence: Sequence) -> Steps[None]:
        from vidspec.decoding.workers.run import run_parallel  # imports torch, which a profile is checked without

        yield from run_parallel(sequence)
