"""Captions with ``await`` and ``async for``: a captioner for asyncio. No web framework."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from typing_extensions import Unpack

from vidspec.decoding.text_stream import TextStream
from vidspec.errors import ClosedError, GenerationError
from vidspec.events.events import Event, Finished, InputsReleased, LoopLoad
from vidspec.events.wake import WakeEvent
from vidspec.models.prefix_cache import PrefixCache
from vidspec.models.request import CaptionOptions, CaptionRequest, Question, make_request, prompt_list

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.events.record import Caption

__all__ = ["AsyncCaptioner"]

#: Most clips that are read and not prefilled yet; their frames are in memory.
AHEAD = 8

#: Events of a request, or the exception that ended it.
EventQueue: TypeAlias = "asyncio.Queue[Event | Exception]"


class Ticket:
    """A submitted request: its events, and the flag by which it is abandoned."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.abandoned = threading.Event()
        self._events: EventQueue = asyncio.Queue()
        self._loop = loop

    async def next_event(self) -> Event:
        """Wait for the next event.

        Raises:
            Exception: the one that ended the request.
        """
        event = await self._events.get()
        if isinstance(event, Exception):
            try:
                raise event
            finally:
                del event  # its traceback refers to this frame: a cycle that keeps the request
        return event

    def deliver(self, event: Event | Exception) -> None:
        """Add an event, from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)


class CaptionService:
    """Captions submitted requests in a thread of its own, several at a time.

    It is the source of ``Captioner.serve``: ``over`` and ``take`` are called by the service's thread only.

    Args:
        captioner: its models.
        batch: most clips at once; None to choose by memory and measured times.
    """

    def __init__(self, captioner: Captioner, batch: int | None = None) -> None:
        self._captioner, self._batch = captioner, batch
        self._wake = WakeEvent()
        self._arrived: deque[CaptionRequest] = deque()
        self._tickets: set[Ticket] = set()
        self._closing = self._captioner_closed = False
        self._thread = threading.Thread(target=self._run, name="captions", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """True once the service is closing and no request is left."""
        return self._closing and not self._arrived

    def take(self) -> CaptionRequest | None:
        """Return the next request that is not abandoned; None if there is none now."""
        while self._arrived:
            request = self._arrived.popleft()
            if request.abandoned is None or not request.abandoned.is_set():
                return request
        return None

    def submit(self, request: CaptionRequest) -> Ticket:
        """Submit a request whose clip has been read, from the event loop."""
        ticket = Ticket(asyncio.get_running_loop())
        self._tickets.add(ticket)
        if self._captioner_closed:
            ticket.deliver(ClosedError())
        self._arrived.append(replace(request, key=ticket, abandoned=ticket.abandoned))
        self._wake.set()
        return ticket

    def abandon(self, ticket: Ticket) -> None:
        """Free the place of a request; no effect on one that has ended."""
        ticket.abandoned.set()
        self._tickets.discard(ticket)
        self._wake.set()

    def close(self) -> None:
        """End the thread after the requests that are left."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self.over:
            try:
                with closing(self._captioner.serve(self, batch=self._batch, wake=self._wake)) as events:
                    for key, event in events:
                        if isinstance(key, Ticket) and not isinstance(event, LoopLoad):
                            key.deliver(event)
            except ClosedError as error:
                self._captioner_closed = True
                self._fail_all(error)
                return
            except Exception:  # a bug: the clips in flight are lost, the server is not
                traceback.print_exc(file=sys.stderr)
                self._fail_all(GenerationError("the pass failed", kind="internal"))

    def _fail_all(self, error: Exception) -> None:
        for ticket in list(self._tickets):
            ticket.deliver(error)


class AsyncCaptioner:
    """A captioner for one event loop; concurrent calls share passes, and a text never depends on other calls.

    A thread captions the clips of all calls. If a call is cancelled, or its iterator closed, the clip's place is free
    after the running pass.

    Args:
        captioner: its models; :meth:`close` closes it.
        batch: most clips at once; None to choose by memory and measured times.
    """

    def __init__(self, captioner: Captioner, batch: int | None = None) -> None:
        self.captioner = captioner
        self._service = CaptionService(captioner, batch)
        self._ahead = asyncio.Semaphore(AHEAD)

    async def __aenter__(self) -> AsyncCaptioner:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the captioner; unfinished calls raise ``ClosedError``."""
        await asyncio.to_thread(self.captioner.close)
        await self.drain()

    async def drain(self) -> None:
        """End the thread after the calls in progress; the captioner stays open."""
        await asyncio.to_thread(self._service.close)

    async def caption(self, path: str | Path, **options: Unpack[CaptionOptions]) -> Caption:
        """Caption one clip, as :meth:`Captioner.caption <vidspec.captioner.Captioner.caption>`."""
        return await self._caption(make_request("caption", path, options))

    async def captions(
        self, path: str | Path, prompts: Sequence[str], **options: Unpack[CaptionOptions]
    ) -> list[Caption]:
        """Caption a clip with several prompts, as :meth:`Captioner.captions <vidspec.captioner.Captioner.captions>`."""
        request, prompts = make_request("captions", path, options), prompt_list(prompts)
        request = await asyncio.to_thread(self.captioner.read_request, request)
        cache, is_read = PrefixCache(), asyncio.Event()

        async def answer(number: int, prompt: str) -> Caption:
            if number:
                await is_read.wait()
            own = replace(request, prompt=prompt, reread=None, question=Question("prompt", number))
            return await self._caption(replace(own, cache=cache.fork() if number else cache), is_read)

        answers = [asyncio.ensure_future(answer(number, prompt)) for number, prompt in enumerate(prompts)]
        try:
            return await asyncio.gather(*answers)
        finally:
            for one in answers:
                one.cancel()

    def stream(self, path: str | Path, **options: Unpack[CaptionOptions]) -> AsyncGenerator[Event, None]:
        """Caption one clip, event by event, as :meth:`Captioner.stream <vidspec.captioner.Captioner.stream>`."""
        return self._events(make_request("stream", path, options))

    def stream_text(self, path: str | Path, **options: Unpack[CaptionOptions]) -> AsyncGenerator[str, None]:
        """Yield the text as soon as it is certain, as the captioner's ``stream_text``."""
        return self._texts(make_request("stream_text", path, options))

    async def _texts(self, request: CaptionRequest) -> AsyncGenerator[str, None]:
        stream = TextStream(self.captioner.setup_of(request).profile.generate.stop)
        async with aclosing(self._events(request)) as events:
            async for event in events:
                if text := stream.add(event):
                    yield text

    async def _caption(self, request: CaptionRequest, is_read: asyncio.Event | None = None) -> Caption:
        async with aclosing(self._events(request)) as events:
            async for event in events:
                if isinstance(event, InputsReleased) and is_read is not None:
                    is_read.set()
                if isinstance(event, Finished):
                    return event.caption
        raise AssertionError("a stream ends with Finished")

    def _events(self, request: CaptionRequest) -> AsyncGenerator[Event, None]:
        return self.run(partial(asyncio.to_thread, self.captioner.read_request, request))

    async def run(self, read: Callable[[], Awaitable[CaptionRequest]]) -> AsyncGenerator[Event, None]:
        """Yield the events of a request; closing the iterator frees its place.

        Args:
            read: returns the request with its frames; called when there is memory for them.
        """
        async with AsyncExitStack() as reading:
            await reading.enter_async_context(self._ahead)
            ticket = self._service.submit(await read())
            try:
                while True:
                    event = await ticket.next_event()
                    if isinstance(event, InputsReleased):
                        await reading.aclose()
                    yield event
                    if isinstance(event, Finished):
                        return
            finally:
                self._service.abandon(ticket)
