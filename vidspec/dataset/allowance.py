"""Time and bytes that fetching a clip may take; fetches nothing itself."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

from vidspec.dataset.access import Access
from vidspec.errors import VideoError

__all__ = ["Allowance", "FetchLimits"]

T = TypeVar("T")

#: Seconds within which a store gives a chunk of 2 MiB, or it has stalled: 280 kbit/s are enough.
STALLED = 60.0
#: Bytes of a clip that are fetched at most by default.
MAX_FETCH = 4 << 30


class FetchLimits(NamedTuple):
    """Bounds of what is fetched, and what data may name; plain values that travel to other processes.

    Attributes:
        timeout: seconds that fetching a clip may take; None for no limit but :data:`STALLED`.
        most: bytes of a clip, and of what is read of a shard to find its clips.
        access: what rows of shards may name.
    """

    timeout: float | None = None
    most: int = MAX_FETCH
    access: Access = Access()


class Allowance:
    """Time and bytes that one clip, or finding the clips of a shard, may still take.

    Args:
        name: what is fetched, for errors.
        limits: of it.
        whole: whether the timeout is for all of it, and not for each request alone.
    """

    def __init__(self, name: str, limits: FetchLimits, *, whole: bool = True) -> None:
        self.name, self.limits, self._whole = name, limits, whole
        self.renew()

    def renew(self) -> None:
        """Begin again, with the next clip."""
        self._left = self.limits.most
        timeout = self.limits.timeout
        self._until = time.monotonic() + timeout if timeout is not None and self._whole else None

    def take(self, size: int) -> None:
        """Count bytes that are to be fetched.

        Raises:
            VideoError: they are too many.
        """
        self._left -= size
        if self._left < 0:
            raise self.exceeded()

    def exceeded(self) -> VideoError:
        """The error of a clip with too many bytes."""
        most = self.limits.most
        shown = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most} bytes"
        return VideoError(f"{self.name}: has more than {shown}", kind="too_large", hint="raise --max-fetch")

    @property
    def seconds(self) -> float:
        """Seconds that the next request may take.

        Raises:
            VideoError: of kind ``timeout``, where none are left.
        """
        timeout = self.limits.timeout
        left = [STALLED, *([] if timeout is None else [timeout])]
        if self._until is not None:
            left.append(self._until - time.monotonic())
        if min(left) <= 0:
            raise self._expired(timeout or 0.0)
        return min(left)

    def call(self, request: Callable[[], T], seconds: float | None = None) -> T:
        """The result of a request to a store; one that takes too long is given up, and its thread left to itself.

        Raises:
            VideoError: of kind ``timeout``.
            Exception: whatever ``request`` raises.
        """
        seconds = self.seconds if seconds is None else seconds
        results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def work() -> None:
            try:
                results.put((request(), None))
            except BaseException as error:
                results.put((None, error))

        threading.Thread(target=work, name="fetch", daemon=True).start()
        try:
            result, error = results.get(timeout=seconds)
        except queue.Empty:
            raise self._expired(seconds) from None
        if error is not None:
            raise error
        return cast(T, result)

    def _expired(self, seconds: float) -> VideoError:
        timeout = self.limits.timeout
        if timeout is not None and (seconds <= 0 or seconds < STALLED):
            return VideoError(f"{self.name}: not fetched within {timeout:g} s", kind="timeout", hint="raise --timeout")
        return VideoError(f"{self.name}: the store gave nothing for {seconds:g} s", kind="timeout")
