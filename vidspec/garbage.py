"""Timing of Python's cyclic garbage collection: not while models load, in full only between texts or long overdue.

A full collection walks all objects that are not frozen; those of torch, transformers and a pair of models take 0.2 s.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["collect_if_due", "deferred", "loading", "thaw", "thaw_after"]

#: Collections of the middle generation after which a full one is due, as in Python's own settings.
DUE = 10
#: Factor on DUE while clips in flight would have to wait for the collection.
PATIENCE = 10
#: Seconds of the shortest reported collection.
REPORTED = 1e-3

_lock = threading.Lock()
_deferring = 0
_thresholds = (0, 0, 0)


@contextmanager
def loading(*, fresh: bool = False) -> Iterator[None]:
    """Import and load without collections, then exempt all existing objects from later ones (`gc.freeze`).

    Reference counts still free exempt objects, but not cycles of them: what was loaded and is used no longer needs
    :func:`thaw`. Earlier garbage and that of loading is collected first, so that none of it is kept for good. No effect
    inside another call and with collection turned off.

    Args:
        fresh: True if the process has just started, with no garbage worth collecting.
    """
    if not gc.isenabled():
        yield
        return
    if not fresh:
        gc.collect()
        gc.freeze()  # the second collection then walks only the loaded objects
    gc.disable()
    try:
        yield
        if not fresh:
            gc.collect()
        gc.freeze()
    finally:
        gc.enable()


def thaw() -> None:
    """Expose all objects to collections again, until the next :func:`loading`."""
    gc.unfreeze()


def thaw_after(owner: object) -> None:
    """Call :func:`thaw` when ``owner`` is freed, so that a collection frees what it owned, cycles included."""
    weakref.finalize(owner, thaw).atexit = False


@contextmanager
def deferred(report: Callable[[float, float], None] = lambda start, end: None) -> Iterator[None]:
    """Suspend automatic full collections; :func:`collect_if_due` makes up for them.

    Young objects are still collected.

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
        busy: True if clips in flight would wait; then only a long overdue collection runs.
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
