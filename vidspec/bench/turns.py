"""The measuring loop: contenders in turns on every item, and the time of a single call. Knows no models."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import TypeVar

from vidspec.errors import GenerationError

K = TypeVar("K")
I = TypeVar("I")  # noqa: E741
T = TypeVar("T")


class ContenderFailed(GenerationError):
    """Raised by a contender that the measurement can do without, such as another program."""


def measure_in_turns(
    contenders: Mapping[K, Callable[[I], T]],
    items: Sequence[I],
    repeats: int,
    *,
    done: Mapping[tuple[K, I, int], T] = MappingProxyType({}),
    keep: Callable[[tuple[K, I, int], T], None] = lambda _key, _result: None,
    leave: Callable[[K, str], None] = lambda _name, _why: None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[K, dict[I, list[T]]]:
    """Call every contender ``repeats`` times on every item, in rotation: A B C, then B C A, then C A B.

    Each is called once on the first item before, to warm up allocations, kernels and caches.

    Args:
        contenders: by name.
        items: such as clips, in order.
        repeats: of all items.
        done: results of an earlier run by contender, item and repeat (from 0); not measured again.
        keep: called with every new result at once.
        leave: called with a contender that raised :class:`ContenderFailed`, and the reason; it has no results.
        say: called with the next step.

    Returns:
        results by contender and item.
    """
    found: dict[K, dict[I, list[T]]] = {name: {item: [] for item in items} for name in contenders}

    def call(name: K, item: I) -> T | None:
        try:
            return contenders[name](item)
        except ContenderFailed as error:
            say(f"left out: {error}")
            leave(name, str(error))
            del found[name]
            return None

    for name in contenders:
        if not all((name, item, repeat) in done for item in items for repeat in range(repeats)):
            say(f"warm-up {name}")
            call(name, items[0])
    for turn, (repeat, item) in enumerate(product(range(repeats), items)):
        say(f"{repeat + 1}/{repeats} {item}")
        for name in rotate(list(found), turn):
            key = name, item, repeat
            result = done[key] if key in done else call(name, item)
            if result is None:
                continue
            if key not in done:
                keep(key, result)
            found[name][item].append(result)
    return found


def rotate(names: Sequence[K], turn: int) -> list[K]:
    """Rotate ``names`` by ``turn``: A B C, then B C A, then C A B."""
    first = turn % max(1, len(names))
    return [*names[first:], *names[:first]]


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
