"""The one loop of all measurements: contenders take turns, and one that fails may be left out. No models here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from vidspec.errors import VidspecError

__all__ = ["ContenderPool", "rotate", "run_repeated", "time_call"]

K = TypeVar("K")
T = TypeVar("T")


def time_call(
    run: Callable[[], object],
    wait: Callable[[], None] = lambda: None,
    clock: Callable[[], float] | None = None,
) -> float:
    """Seconds of a call. ``wait`` returns when the device has nothing left to do."""
    clock = clock or time.perf_counter
    wait()
    start = clock()
    run()
    wait()
    return clock() - start


def run_repeated(
    runs: Mapping[K, Callable[[], T]],
    repeats: int,
    *,
    warm_ups: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> dict[K, list[T]]:
    """What each call gave, all of them once before any of them again; the warm-ups' results are dropped.

    ``say`` is called with what comes next.
    """
    found: dict[K, list[T]] = {key: [] for key in runs}
    for turn in range(1 - warm_ups, repeats + 1):
        for key, run in runs.items():
            say(f"{key}: {f'{turn}/{repeats}' if turn > 0 else 'warm-up'}")
            made = run()
            if turn > 0:
                found[key].append(made)
    return found


def rotate(keys: Sequence[K], turn: int) -> list[K]:
    """A B C, then B C A, then C A B."""
    first = turn % max(1, len(keys))
    return [*keys[first:], *keys[:first]]


class ContenderPool:
    """Contenders by name; one that may fail and does takes no further part.

    Args:
        names: all of them.
        dispensable: whether a contender's error is its own, and not the end of the measurement.
        say: is called with what was left out, and why.
        left: where that is kept.

    Attributes:
        names: those that still do.
        left: why each of the others does not.
    """

    def __init__(
        self,
        names: Iterable[str],
        dispensable: Callable[[str, VidspecError], bool],
        say: Callable[[str], None],
        left: dict[str, str] | None = None,
    ) -> None:
        self.names, self._dispensable, self._say = list(names), dispensable, say
        self.left: dict[str, str] = {} if left is None else left

    def ask(self, name: str, call: Callable[[], T]) -> T | None:
        """What the call gives; None for a contender that was left out."""
        if name not in self.names:
            return None
        try:
            return call()
        except VidspecError as error:
            if not self._dispensable(name, error):
                raise
            self._say(f"left out: {error}")
            self.left[name] = str(error)
            self.names.remove(name)
            return None
