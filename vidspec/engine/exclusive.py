"""Exclusive use of models: one thread at a time computes with a model. Works on any objects, without torch.

A pass writes to the slab of its model and to buffers that passes share, so two threads never run passes of one model at
the same time. A thread takes all models that it needs at once and holds them for one turn, so there is no deadlock.
Groups of threads (the calls of one captioner) get their turns in the order of waiting; within a group any thread may
proceed, as one turn serves all of its calls.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import WeakSet

from vidspec.errors import GenerationError

__all__ = ["acquire", "has_other_group", "notify", "release", "try_acquire"]


class Waiter(NamedTuple):
    """A thread waiting for models, and its group."""

    thread: threading.Thread
    group: object
    models: Sequence[object]


#: Has a re-entrant lock: garbage collection may close a generator, which releases its models, in the middle of a call.
_changed = threading.Condition()
_owners: dict[object, threading.Thread] = {}
_waiters: list[Waiter] = []
#: Models that another thread was using when this process was forked; that thread does not exist here.
_unusable: WeakSet[object] = WeakSet()


def acquire(group: object, models: Sequence[object], unless: Callable[[], bool] = lambda: False) -> bool:
    """Take the models once no other thread uses any of them and no other group has waited longer.

    Args:
        group: the group the thread works for.
        models: at least one; models that the calling thread already holds do not block.
        unless: cancels the wait; called again whenever models are released.

    Returns:
        True with the models, False without them if ``unless()``.

    Raises:
        GenerationError: another thread was using them when this process was forked.
    """
    mine = Waiter(threading.current_thread(), group, models)
    with _changed:
        _waiters.append(mine)
        try:
            while True:
                _check_fork(models)
                if _is_free(mine):
                    _owners.update(dict.fromkeys(models, mine.thread))
                    return True
                if unless():
                    return False
                _changed.wait()
        finally:
            _waiters.remove(mine)
            if _waiters:
                _changed.notify_all()


def try_acquire(models: Sequence[object]) -> bool:
    """Take the models if no thread uses any of them, the calling one included; for short work."""
    with _changed:
        if any(model in _owners for model in models):
            return False
        _check_fork(models)
        _owners.update(dict.fromkeys(models, threading.current_thread()))
        return True


def release(models: Sequence[object]) -> None:
    """Release models and wake all waiting threads."""
    with _changed:
        for model in models:
            _owners.pop(model, None)
        _changed.notify_all()


def notify() -> None:
    """Make all waiting threads check again whether they still want models."""
    with _changed:
        _changed.notify_all()


def has_other_group(group: object, models: Sequence[object]) -> bool:
    """Return True if a thread of another group waits for any of these models."""
    with _changed:
        return any(waiter.group is not group and not set(waiter.models).isdisjoint(models) for waiter in _waiters)


def _is_free(mine: Waiter) -> bool:
    if any(_owners.get(model, mine.thread) is not mine.thread for model in mine.models):
        return False
    earlier = _waiters[: _waiters.index(mine)]
    return not any(
        waiter.group is not mine.group and not set(waiter.models).isdisjoint(mine.models) for waiter in earlier
    )


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
    _waiters.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)
