"""One call of a captioner: its source of clips, the clips in flight, and its undelivered events."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Hashable
from collections.abc import Sequence as Items
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol, TypeAlias

from vidspec.decoding.loop import PassRecord
from vidspec.draft_length.batch import BatchSize
from vidspec.engine.device import use_half_the_cores
from vidspec.engine.requests import PrefillPrompt
from vidspec.errors import VidspecError
from vidspec.events.events import Event, LoopLoad, PrefillProgress

if TYPE_CHECKING:
    import torch

    from vidspec.decoding.admission import MemoryClaim
    from vidspec.decoding.sequence import Sequence
    from vidspec.draft_length.pace import WindowController
    from vidspec.engine.decoder import LanguageModel
    from vidspec.engine.forward import Engine
    from vidspec.events.trace import Trace
    from vidspec.events.wake import WakeEvent
    from vidspec.models.request import CaptionRequest
    from vidspec.models.video_language_model import VideoLanguageModel

__all__ = ["Arrivals", "CaptionerCall", "ServedCaptioner", "ServingEvents", "SingleArrival"]

#: Events with the key of their clip, or the exception that ended it; the load has the key None.
ServingEvents: TypeAlias = Generator[tuple[Hashable, Event | LoopLoad | Exception], None, None]


class Arrivals(Protocol):
    """Source of clips whose frames are in memory. Only the thread of its call uses it."""

    @property
    def over(self) -> bool:
        """True if no more clips will come."""
        ...

    def take(self) -> CaptionRequest | None:
        """Return the next clip, None if there is none now; never wait. The wake event is set when one is added."""
        ...


class SingleArrival:
    """A source of one clip, released when it is taken."""

    def __init__(self, request: CaptionRequest) -> None:
        self._left = [request]

    @property
    def over(self) -> bool:
        """True once the clip was taken."""
        return not self._left

    def take(self) -> CaptionRequest | None:
        """Return the clip, once."""
        return self._left.pop() if self._left else None


class ServedCaptioner(Protocol):
    """The part of a captioner that serving uses; see :class:`~vidspec.captioner.Captioner`.

    Attributes:
        has_feed: True if another thread encodes clips during the passes.
    """

    @property
    def has_feed(self) -> bool: ...
    @property
    def target(self) -> Engine[VideoLanguageModel]: ...
    @property
    def devices(self) -> tuple[torch.device, ...]: ...
    @property
    def pace(self) -> WindowController | None: ...
    @property
    def language_models(self) -> tuple[LanguageModel, ...]: ...
    def needs(self, request: CaptionRequest) -> Items[MemoryClaim]: ...
    def start(self, request: CaptionRequest, trace: Trace) -> Sequence: ...


class CaptionerCall:
    """One call of a captioner: its source of clips, those in flight, and its undelivered events.

    Args:
        captioner: owner of the models.
        arrivals: the clips.
        batch: the most clips at once; None to choose by measurement. Memory may allow fewer.
        wake: set when ``arrivals`` has something new.
        trace: trace of its first clip; a new one if None.
        result_only: True for a call of one clip that needs only ``Finished`` and errors.

    Attributes:
        models, slab, pace: models of its turns; slab of the target; window controller, if there is one.
        sequences: clips in flight, by their keys in the loop.
        waiting: clips taken and not admitted yet.
        again: clips to be repeated without others.
        news: events not taken yet.
        closed: True if its caller wants no more.
    """

    def __init__(
        self,
        captioner: ServedCaptioner,
        arrivals: Arrivals,
        batch: int | None,
        wake: WakeEvent,
        trace: Trace | None = None,
        result_only: bool = False,
    ) -> None:
        self.captioner, self.arrivals, self.batch, self.wake, self.trace = captioner, arrivals, batch, wake, trace
        self.result_only = result_only
        self.models, self.slab = captioner.language_models, captioner.target.model.decoder.slab
        self.pace = captioner.pace
        self.sequences: dict[Hashable, Sequence] = {}
        self.waiting: deque[CaptionRequest] = deque()
        self.again: deque[CaptionRequest] = deque()
        self.news: deque[tuple[Hashable, Event | LoopLoad | Exception]] = deque()
        self.closed = False
        self.size = BatchSize()
        self.last = PassRecord("target", 0, 0, 0, 0.0)
        self.passes = self.accepted = 0
        self.reported, self.begun, self.reading_s = 0.0, time.monotonic(), 0.0
        self.threads, self.halved = ExitStack(), False

    @property
    def limit(self) -> int:
        """Most clips at once."""
        return self.batch or self.size.most

    @property
    def unfinished(self) -> bool:
        """True if clips that it took have not ended."""
        return bool(self.sequences or self.waiting or self.again)

    def needs(self, request: CaptionRequest) -> Items[MemoryClaim]:
        """Return the memory that a clip needs; nothing for one that cannot be decoded."""
        try:
            return self.captioner.needs(request) if request.clip is not None else ()
        except VidspecError:  # decoding the clip raises the same error
            return ()

    def take(self) -> None:
        """Take the next clip if this call's limits would admit it now."""
        if not self.waiting and not self.again and len(self.sequences) < self.limit:
            request = self.arrivals.take()
            if request is not None:
                self.waiting.append(request)

    def wait(self) -> None:
        """Wait for a clip to take, a second at most."""
        begun = time.monotonic()
        self.wake.wait(1.0)
        self.reading_s += time.monotonic() - begun

    def add_collection(self, start: float, end: float) -> None:
        """Add a garbage collection, which stops every thread, to the traces of the clips in flight."""
        for sequence in list(self.sequences.values()):
            origin = sequence.trace.origin
            sequence.trace.add("collect", "target", start - origin, end - origin)

    def halve_threads(self) -> None:
        """Leave half of the cores to the feed, if there is one."""
        if self.captioner.has_feed and not self.halved:
            self.halved = True
            if self.captioner.target.model.device.type == "cpu":
                self.threads.enter_context(use_half_the_cores())

    def load(self, clips: int) -> LoopLoad:
        """Return the number of clips, ``clips`` of all calls, and the size of the last pass."""
        slab = self.slab
        return LoopLoad(
            clips=clips,
            waiting=len(self.waiting) + len(self.again),
            sequences=round(self.last.sequences),
            rows=round(self.last.rows),
            accepted=self.accepted,
            passes=self.passes,
            kv_used=slab.used * slab.entry_bytes,
            kv_capacity=slab.nbytes,
            batch=self.limit,
            reading=self.reading_s / max(time.monotonic() - self.begun, 1e-9),
        )

    def report_load(self, now: float, clips: int) -> None:
        """Add the progress of the target's prefills and the load to the news."""
        self.reported = now
        for sequence in self.sequences.values():
            prompt = sequence.request
            if not isinstance(prompt, PrefillPrompt) or prompt.lane != "target":
                continue
            if (span := prompt.reading.span) is not None:
                self.news.append((sequence.job.key, PrefillProgress(span.length, prompt.reading.prompt.length)))
        self.news.append((None, self.load(clips)))
