"""Captions with ``await`` and ``async for``: a captioner for asyncio. No web framework."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import Unpack

from vidspec.decoding.text_stream import TextStream
from vidspec.events.events import Event, Finished, InputsReleased
from vidspec.models.request import CaptionOptions, CaptionRequest, make_request
from vidspec.serve.service import CaptionService

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.events.record import Caption

__all__ = ["AsyncCaptioner"]

#: Most clips that are read and not prefilled yet; their frames are in memory.
AHEAD = 8


class AsyncCaptioner:
    """A captioner for one event loop; concurrent calls share passes, and a text never depends on other calls.

    A thread captions the clips of all calls. If a call is cancelled, or its iterator closed, the clip's place is free
    after the running pass.

    Args:
        captioner: its models; :meth:`close` closes it.
    """

    def __init__(self, captioner: Captioner) -> None:
        self.captioner = captioner
        self._service = CaptionService(captioner)
        self._ahead = asyncio.Semaphore(AHEAD)

    async def __aenter__(self) -> AsyncCaptioner:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the captioner; unfinished calls raise ``ClosedError``."""
        await asyncio.to_thread(self.captioner.close)
        await asyncio.to_thread(self._service.close)

    async def caption(self, path: str | Path, **options: Unpack[CaptionOptions]) -> Caption:
        """Caption one clip, as :meth:`Captioner.caption <vidspec.captioner.Captioner.caption>`."""
        async with aclosing(self._events(make_request("caption", path, options))) as events:
            async for event in events:
                if isinstance(event, Finished):
                    return event.caption
        raise AssertionError("a stream ends with Finished")

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

    async def _events(self, request: CaptionRequest) -> AsyncGenerator[Event, None]:
        async with AsyncExitStack() as reading:
            await reading.enter_async_context(self._ahead)
            ticket = self._service.submit(await asyncio.to_thread(self.captioner.read_request, request))
            try:
                while True:
                    event = await ticket.events.get()
                    if isinstance(event, Exception):
                        raise event
                    if isinstance(event, InputsReleased):
                        await reading.aclose()
                    yield event
                    if isinstance(event, Finished):
                        return
            finally:
                self._service.abandon(ticket)
