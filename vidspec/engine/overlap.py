"""Host work to do while a device computes a pass. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WORK: ContextVar[Callable[[], None] | None] = ContextVar("work", default=None)


@contextmanager
def overlap(work: Callable[[], None]) -> Iterator[None]:
    """Run ``work`` within the context, at the first wait for a device or at the end; it must not raise."""
    token = _WORK.set(work)
    try:
        yield
    finally:
        run_overlapped()
        _WORK.reset(token)


def run_overlapped() -> None:
    """Run the work of the open :func:`overlap` if it has not run yet; called before each wait."""
    work = _WORK.get()
    if work is not None:
        _WORK.set(None)
        work()
