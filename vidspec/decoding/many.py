"""Many clips of one call, which threads of this process read ahead of need; many prompts about one. Loads no models."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import islice
from typing import TYPE_CHECKING, cast

from vidspec.errors import VidspecError
from vidspec.events.events import Finished, InputsReleased
from vidspec.events.record import Caption, failed_caption
from vidspec.events.wake import WakeEvent
from vidspec.models.request import CaptionRequest

if TYPE_CHECKING:
    from vidspec.decoding.dialogue import ClipSession
    from vidspec.decoding.tickets import Arrivals, ServingEvents


class ReadAhead:
    """Source of clips for :meth:`~vidspec.decoding.engine_client.EngineClient.serve`, in the order of the requests.

    Args:
        requests: the clips, drawn as they are needed; each has a key of its own.
        read: returns a request with its frames.
        ahead: most clips that are read and not taken yet.
        threads: that read.

    Attributes:
        wake: set when a clip has been read.
        failed: requests that could not be read, with the error.
    """

    def __init__(
        self,
        requests: Iterable[CaptionRequest],
        read: Callable[[CaptionRequest], CaptionRequest],
        *,
        ahead: int = 4,
        threads: int = 2,
    ) -> None:
        self._requests, self._read, self._ahead = iter(requests), read, ahead
        self._pool = ThreadPoolExecutor(threads, "vidspec-read")
        self._reading: deque[tuple[CaptionRequest, Future[CaptionRequest]]] = deque()
        self.wake, self.failed = WakeEvent(), deque[tuple[CaptionRequest, Exception]]()
        self._submit()

    @property
    def over(self) -> bool:
        """True if every clip was taken or has failed."""
        return not self._reading

    def take(self) -> CaptionRequest | None:
        """Return the next clip if it has been read; None if not."""
        while self._reading and self._reading[0][1].done():
            request, reading = self._reading.popleft()
            self._submit()
            error = reading.exception()
            if error is None:
                return reading.result()
            if not isinstance(error, Exception):
                raise error
            self.failed.append((request, error))
        return None

    def close(self) -> None:
        """End the threads after the clips that they are reading."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self) -> None:
        for request in islice(self._requests, self._ahead - len(self._reading)):
            reading = self._pool.submit(self._read, request)
            reading.add_done_callback(lambda _: self.wake.set())
            self._reading.append((request, reading))


def caption_clips(
    serve: Callable[..., ServingEvents],
    read: Callable[[CaptionRequest], CaptionRequest],
    requests: Iterable[CaptionRequest],
    ended: Callable[[], None],
    *,
    raises: bool,
    profile: str,
) -> Generator[tuple[int, Caption], None, None]:
    """Caption clips together; yield the number and the caption of each as it is finished.

    Args:
        serve: captions clips as they arrive; takes their source and its ``wake``.
        read: returns a request with its frames.
        requests: the clips, with their numbers from 0 as keys.
        ended: called when no further clip is read.
        raises: True to raise the error of a clip, False to yield a caption with it.
        profile: its name, for captions of failed clips.

    Raises:
        VidspecError: of the first clip that fails, if ``raises``. Any other exception is a bug, and always raised.
    """
    paths: dict[int, str] = {}

    def numbered() -> Iterator[CaptionRequest]:
        for request in requests:
            paths[cast(int, request.key)] = request.path
            yield request

    def failed(key: object, error: Exception) -> tuple[int, Caption]:
        if raises or not isinstance(error, VidspecError):
            raise error
        number = cast(int, key)
        return number, failed_caption(paths.pop(number), error, profile=profile)

    with ExitStack() as stack:
        stack.callback(ended)
        source = stack.enter_context(closing(ReadAhead(numbered(), read)))
        while not (source.over and not source.failed):
            with closing(serve(source, wake=source.wake)) as events:
                for key, event in events:
                    while source.failed:
                        request, error = source.failed.popleft()
                        yield failed(request.key, error)
                    if isinstance(event, Exception):
                        yield failed(key, event)
                    elif isinstance(event, Finished):
                        paths.pop(cast(int, key))
                        yield cast(int, key), event.caption
            while source.failed:
                request, error = source.failed.popleft()
                yield failed(request.key, error)


def caption_prompts(serve: Callable[[Arrivals], ServingEvents], session: ClipSession) -> list[Caption]:
    """Return the caption of each prompt of a session, in order, decoded together.

    Args:
        serve: captions clips as they arrive.
        session: has the prompts.

    Raises:
        VideoError, GenerationError: of the first prompt that fails.
    """
    answers: dict[int, Caption] = {}
    with closing(serve(session)) as events:
        for key, event in events:
            if isinstance(event, Exception):
                raise event
            if isinstance(event, InputsReleased):
                session.mark_read(session.begun[cast(int, key)])
            elif isinstance(event, Finished):
                session.mark_ended(cast(int, key))
                answers[cast(int, key)] = event.caption
    return [answers[number] for number in sorted(answers)]


def in_order(results: Iterable[tuple[int, Caption]]) -> Iterator[Caption]:
    """Yield captions in the order of their numbers, which are complete and begin at 0."""
    waiting: dict[int, Caption] = {}
    turn = 0
    for number, caption in results:
        waiting[number] = caption
        while turn in waiting:
            yield waiting.pop(turn)
            turn += 1
