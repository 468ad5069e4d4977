"""The slot of the draft process: kept between clips, started early, replaced after a failure."""

from __future__ import annotations

import weakref

import torch

from vidspec.config.profiles import Profile
from vidspec.decoding.auto import split_threads
from vidspec.decoding.scheduler import WorkerLost
from vidspec.decoding.workers.messages import DraftStart
from vidspec.decoding.workers.process import PATIENCE, DraftProcess
from vidspec.engine.device import CoreSharing
from vidspec.models.identity import Identity, check_identity, model_identity, require_vision
from vidspec.models.placement import Placement
from vidspec.models.video_language_model import VideoLanguageModel

__all__ = ["DraftProcessSlot"]

#: Most seconds for loading the weights of a large draft.
LOADING = 1800.0


class DraftProcessSlot:
    """Holds one draft process at a time.

    Args:
        model: hub id or folder of the drafting model.
        where: placement of the draft.
        profile: the settings.

    Attributes:
        target: the model that the draft must match; set before the first use.
        device: device of the draft.
        target_threads, draft_threads: torch threads of both on a CPU; None on other devices.
    """

    target: VideoLanguageModel

    def __init__(self, model: str, where: Placement, profile: Profile) -> None:
        self.model, self.device = model, where.device
        wanted = profile.workers
        self._shows_video = profile.shows_the_video
        self._checked: tuple[VideoLanguageModel, Identity] | None = None
        limit: int | None = None
        self.draft_threads: int | None = None
        if where.device.type == "cpu":
            total = profile.models.threads or torch.get_num_threads()
            limit, self.draft_threads = split_threads(total, wanted.draft_threads)
        self.target_threads = limit
        #: Reduces the target's threads while any clip is here, which leaves the draft its share of the processor.
        self.sharing = CoreSharing(lambda threads: limit or threads)
        self._start, self._timeout = DraftStart(model, where, self.draft_threads), wanted.timeout
        self._processes: list[DraftProcess] = []
        self.start()
        weakref.finalize(self, _stop_all, self._processes)  # its reader thread would keep a forgotten process for ever

    @property
    def process(self) -> DraftProcess | None:
        """The current process."""
        return self._processes[0] if self._processes else None

    def start(self) -> None:
        """Start a process if there is none, without waiting for it."""
        if self.process is None:
            self._processes.append(DraftProcess(self._start))

    def ready(self) -> DraftProcess:
        """Return a process whose model is loaded; a new one if the last has ended or hangs.

        Raises:
            WorkerLost: it ended, or took too long; the next call starts another.
            ModelError: its model cannot be loaded, or does not match the target.
        """
        process = self.process
        if process is not None and (not process.alive or self._hangs(process)):
            self.drop(process)
        self.start()
        process = self._processes[0]
        try:
            loaded = process.wait_until_loaded(LOADING, self._timeout)
        except WorkerLost:
            self.drop(process)
            raise
        if self._checked != (self.target, loaded):  # comparing vocabularies is slow: once, not for every clip
            check_identity(model_identity(self.target), loaded)
            require_vision(loaded, shown=self._shows_video)
            self._checked = self.target, loaded
        return process

    def _hangs(self, process: DraftProcess) -> bool:
        """Return True if a closed clip's spans are overdue; the limit is longer while the process works."""
        works = process.process.silent_s() < self._timeout
        return process.overdue > (PATIENCE if works else self._timeout)

    def drop(self, lost: DraftProcess | None = None) -> None:
        """End the process and its clips; with ``lost`` only if it is that process, and its clips may be repeated.

        A second call has no effect.
        """
        if lost is None or lost is self.process:
            _stop_all(self._processes, lost=lost is not None)


def _stop_all(processes: list[DraftProcess], *, lost: bool = False) -> None:
    while processes:
        processes.pop().stop(lost=lost)
