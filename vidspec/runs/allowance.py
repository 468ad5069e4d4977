"""Time and byte limits of fetching a clip; fetches nothing itself."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from vidspec.errors import UsageError, VideoError, option
from vidspec.runs.access import Access, check_allowed_url

if TYPE_CHECKING:
    from vidspec.config.run_spec import RunSpec

__all__ = ["Allowance", "FetchLimits", "fetch_limits"]

T = TypeVar("T")

#: Seconds without a chunk of 2 MiB after which a store counts as stalled: 280 kbit/s are enough.
STALLED = 60.0
#: Default maximum of bytes fetched per clip.
MAX_FETCH = 4 << 30


class FetchLimits(NamedTuple):
    """Limits of fetching, and access rules; plain values that can be pickled.

    Attributes:
        timeout: seconds to fetch a clip; None for no limit except :data:`STALLED`.
        most: bytes per clip, and bytes read of a shard to find its clips.
        access: paths and URLs that shard rows may name.
    """

    timeout: float | None = None
    most: int = MAX_FETCH
    access: Access = Access()


def fetch_limits(spec: RunSpec, shard: str | None = None) -> FetchLimits:
    """Return the limits of a run for fetched clips, and what rows of a shard may name.

    Raises:
        UsageError: names the option.
    """
    for folder in spec.allow_paths:
        if not os.path.isdir(folder):
            raise UsageError(f"{option('allow_paths', folder)}: there is no such folder")
    access = Access(spec.allow_paths, tuple(map(check_allowed_url, spec.allow_urls)))
    return FetchLimits(spec.timeout, spec.max_fetch, access.with_typed(*spec.paths, *((shard,) if shard else ())))


class Allowance:
    """Remaining time and bytes for one clip, or for listing the clips of a shard.

    Args:
        name: the file, for error messages.
        limits: limits to start from.
        whole: apply the timeout to the whole fetch instead of each request.
    """

    def __init__(self, name: str, limits: FetchLimits, *, whole: bool = True) -> None:
        self.name, self.limits, self._whole = name, limits, whole
        self.renew()

    def renew(self) -> None:
        """Reset time and bytes for the next clip."""
        self._bytes_left = self.limits.most
        timeout = self.limits.timeout
        self._deadline = time.monotonic() + timeout if timeout is not None and self._whole else None

    def take(self, size: int) -> None:
        """Count bytes about to be fetched.

        Raises:
            VideoError: the limit is exceeded.
        """
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise self.size_error()

    def size_error(self) -> VideoError:
        """Return the error for a clip with too many bytes."""
        most = self.limits.most
        shown = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most} bytes"
        return VideoError(f"{self.name}: has more than {shown}", kind="too_large", hint="raise --max-fetch")

    @property
    def seconds(self) -> float:
        """Seconds left for the next request.

        Raises:
            VideoError: of kind ``timeout``, if none are left.
        """
        timeout = self.limits.timeout
        left = [STALLED, *([] if timeout is None else [timeout])]
        if self._deadline is not None:
            left.append(self._deadline - time.monotonic())
        if min(left) <= 0:
            raise self._timeout_error(timeout or 0.0)
        return min(left)

    def call(self, request: Callable[[], T], seconds: float | None = None) -> T:
        """Return the result of a request to a store; after a timeout its thread is abandoned.

        Raises:
            VideoError: of kind ``timeout``.
            Exception: any exception of ``request``.
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
            raise self._timeout_error(seconds) from None
        if error is not None:
            raise error
        return cast(T, result)

    def _timeout_error(self, seconds: float) -> VideoError:
        timeout = self.limits.timeout
        if timeout is not None and (seconds <= 0 or seconds < STALLED):
            return VideoError(f"{self.name}: not fetched within {timeout:g} s", kind="timeout", hint="raise --timeout")
        return VideoError(f"{self.name}: the store sent nothing for {seconds:g} s", kind="timeout")
