"""The loop of all measurements: contenders in rotation, and one that fails may be left out. No models here."""

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
    """Return the seconds of a call. ``wait`` returns when the device is idle."""
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
    """Call all functions once per round; return their results without the warm-ups.

    ``say`` is called with the next step.
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
    """Rotate ``keys`` by ``turn``: A B C, then B C A, then C A B."""
    first = turn % max(1, len(keys))
    return [*keys[first:], *keys[:first]]


class ContenderPool:
    """Contenders by name; a dispensable one that fails is dropped.

    Args:
        names: all of them.
        dispensable: True if a contender's error only concerns itself and does not end the measurement.
        say: called with each dropped contender's error.
        left: dictionary for the reasons.

    Attributes:
        names: remaining contenders.
        left: reason for each dropped one.
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
        """Return the result of the call; None for a contender that was left out."""
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
