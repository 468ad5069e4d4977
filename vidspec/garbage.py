"""When Python looks for cyclic garbage: not while models load, in full only where no text is being decoded.

A full collection walks all objects that are not frozen; those of torch, transformers and a pair of models take 0.2 s.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["collect_if_due", "deferred", "loading"]

#: Collections of the middle generation after which a full one is due, as in Python's own settings.
DUE = 10
#: So many times more of them before clips in flight have to wait for it.
PATIENCE = 10
#: Seconds; shorter collections are not reported.
REPORTED = 1e-3

_lock = threading.Lock()
_deferring = 0
_thresholds = (0, 0, 0)


@contextmanager
def loading(*, fresh: bool = False) -> Iterator[None]:
    """Import and load without collections, and exempt everything that exists at the end from later ones (`gc.freeze`).

    Reference counts still free what is exempt. Garbage of before and of the loading is collected first, so that none
    of it is kept for good. Without effect inside another call and where collection is turned off.

    Args:
        fresh: the process has just started, so its garbage is not worth looking for.
    """
    if not gc.isenabled():
        yield
        return
    if not fresh:
        gc.collect()
        gc.freeze()  # the second collection walks the loaded objects alone
    gc.disable()
    try:
        yield
        if not fresh:
            gc.collect()
        gc.freeze()
    finally:
        gc.enable()


@contextmanager
def deferred(report: Callable[[float, float], None] = lambda start, end: None) -> Iterator[None]:
    """No full collection starts by itself meanwhile; :func:`collect_if_due` makes up for it. Young objects are
    collected as ever.

    Args:
        report: called after a collection with its start and end by ``time.perf_counter``, unless it was short.
    """
    begun = 0.0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal begun
        now = time.perf_counter()
        if phase == "start":
            begun = now
        elif now - begun >= REPORTED:
            report(begun, now)

    _defer(+1)
    gc.callbacks.append(watch)
    try:
        yield
    finally:
        gc.callbacks.remove(watch)
        _defer(-1)


def collect_if_due(*, busy: bool = False) -> None:
    """Collect in full if enough has been allocated since the last time; called between clips and while waiting.

    Args:
        busy: clips are in flight and wait meanwhile, so only if it has been due for long.
    """
    if gc.isenabled() and gc.get_count()[2] > DUE * (PATIENCE if busy else 1):
        gc.collect()


def _defer(more: int) -> None:
    global _deferring, _thresholds
    with _lock:
        if not _deferring:
            _thresholds = gc.get_threshold()
        _deferring += more
        gc.set_threshold(*_thresholds[:2], 2**31 - 1 if _deferring else _thresholds[2])
