"""Exclusive use of models: one thread at a time computes with a model. No torch, no models: any objects.

A pass writes to the slab of its model and to buffers that passes share, so two threads never run passes of one model at
the same time. A thread takes all models that it needs at once and holds them for one turn, so threads cannot wait for
each other in a circle.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from weakref import WeakSet

from vidspec.errors import GenerationError

__all__ = ["acquire", "release", "try_acquire"]

#: Of a re-entrant lock: garbage collection may close a generator, which releases its models, in the middle of a call.
_changed = threading.Condition()
_owners: dict[object, threading.Thread] = {}
#: Models that another thread was computing with when this process was forked; that thread does not exist here.
_unusable: WeakSet[object] = WeakSet()


def acquire(models: Sequence[object], unless: Callable[[], bool]) -> bool:
    """Wait until no other thread uses any of the models, and take them; False as soon as ``unless()``.

    Raises:
        GenerationError: they were in use in another thread when this process was forked.
    """
    me = threading.current_thread()
    with _changed:
        while True:
            _check_fork(models)
            if all(_owners.get(model, me) is me for model in models):
                _owners.update(dict.fromkeys(models, me))
                return True
            if unless():
                return False
            _changed.wait()


def try_acquire(models: Sequence[object]) -> bool:
    """Take the models if no thread uses any of them, the calling one included."""
    with _changed:
        _check_fork(models)
        if any(model in _owners for model in models):
            return False
        _owners.update(dict.fromkeys(models, threading.current_thread()))
        return True


def release(models: Sequence[object]) -> None:
    """Give models back, and wake all threads that wait."""
    with _changed:
        for model in models:
            _owners.pop(model, None)
        _changed.notify_all()


def _check_fork(models: Sequence[object]) -> None:
    if any(model in _unusable for model in models):
        raise GenerationError(
            "another thread was using these models when this process was forked",
            hint="fork while no clip is being captioned, or load the models in the child process",
            kind="forked",
        )


def _forget_other_threads() -> None:
    global _changed
    _changed = threading.Condition()
    _unusable.update(model for model, owner in _owners.items() if owner is not threading.current_thread())
    _owners.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)
