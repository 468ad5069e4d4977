"""Captions with ``await`` and ``async for``: a captioner for asyncio. No web framework."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import Unpack

from vidspec.decoding.dialogue import ClipSession
from vidspec.decoding.text_stream import TextStream
from vidspec.decoding.tickets import Caller, Ticket
from vidspec.events.events import Event, Finished, InputsReleased
from vidspec.models.request import CaptionOptions, CaptionRequest, make_request, prompt_list

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.events.record import Caption

__all__ = ["AsyncCaptioner"]

#: Most clips that are read and not prefilled yet; their frames are in memory.
AHEAD = 8
#: Seconds between two looks whether all calls have ended, when a server does.
POLL = 0.01


class AsyncCaptioner:
    """A captioner for one event loop; concurrent calls share passes, and a text never depends on other calls.

    If a call is cancelled, or its iterator closed, the clip's place is free after the running pass.

    Args:
        captioner: its models; :meth:`close` closes it.
        batch: most clips at once; None to choose by memory and measured times.
    """

    def __init__(self, captioner: Captioner, batch: int | None = None) -> None:
        self.captioner = captioner
        self._caller = Caller(batch)
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
        """Wait for the calls in progress; the captioner stays open."""
        while self._caller.unfinished:
            await asyncio.sleep(POLL)

    async def caption(self, path: str | Path, **options: Unpack[CaptionOptions]) -> Caption:
        """Caption one clip, as :meth:`Captioner.caption <vidspec.captioner.Captioner.caption>`."""
        return await self._caption(make_request("caption", path, options))

    async def captions(
        self, path: str | Path, prompts: Sequence[str], **options: Unpack[CaptionOptions]
    ) -> list[Caption]:
        """Caption a clip with several prompts, as :meth:`Captioner.captions <vidspec.captioner.Captioner.captions>`."""
        request, prompts = make_request("captions", path, options), prompt_list(prompts)
        request = await asyncio.to_thread(self.captioner.client.inputs.read_request, request)
        session, is_read = ClipSession(replace(request, reread=None)), asyncio.Event()
        session.add_prompts(enumerate(prompts))

        async def answer(number: int) -> Caption:
            if number:
                await is_read.wait()
            prompt = session.take()
            assert prompt is not None and prompt.key == number  # after the first is read, the others wake in order

            def mark_read() -> None:
                session.mark_read(prompt)
                is_read.set()

            try:
                return await self._caption(prompt, mark_read)
            finally:
                session.mark_ended(number)

        answers = [asyncio.ensure_future(answer(number)) for number in range(len(prompts))]
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
        stream = TextStream(self.captioner.client.setup_of(request).profile.generate.stop)
        async with aclosing(self._events(request)) as events:
            async for event in events:
                if text := stream.add(event):
                    yield text

    async def _caption(self, request: CaptionRequest, on_read: Callable[[], None] = lambda: None) -> Caption:
        async with aclosing(self._events(request)) as events:
            async for event in events:
                if isinstance(event, InputsReleased):
                    on_read()
                if isinstance(event, Finished):
                    return event.caption
        raise AssertionError("a stream ends with Finished")

    def _events(self, request: CaptionRequest) -> AsyncGenerator[Event, None]:
        return self.run(partial(asyncio.to_thread, self.captioner.client.inputs.read_request, request))

    async def run(self, read: Callable[[], Awaitable[CaptionRequest]]) -> AsyncGenerator[Event, None]:
        """Yield the events of a request; closing the iterator frees its place.

        Args:
            read: returns the request with its frames; called when there is memory for them.
        """
        events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def deliver(event: Event | Exception) -> None:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(events.put_nowait, event)

        async with AsyncExitStack() as reading:
            await reading.enter_async_context(self._ahead)
            request = await read()
            with Ticket(deliver) as ticket:
                self.captioner.client.submit(request, ticket, self._caller)
                del request  # its frames are released once the models have encoded them
                while True:
                    event = await events.get()
                    if isinstance(event, Exception):
                        try:
                            raise event
                        finally:
                            del event  # its traceback refers to this frame: a cycle that keeps the request
                    if isinstance(event, InputsReleased):
                        await reading.aclose()
                    yield event
                    if isinstance(event, Finished):
                        return
