"""The fastest layout of a weight on this CPU, by measurement.

No rule holds on two vendors. Microseconds of a float32 product of one thread, plain / stored as (in, out) / packed:

============  ====================  ====================  ====================
out x in      AMD Zen 5, 1 row      AMD Zen 5, 6 rows     Intel, AVX-512, 6
============  ====================  ====================  ====================
1024 x 256    15 / 12 / 23          57 / 95 / 25          58 / 45 / 53
9728 x 896    1508 / 998 / 681      3230 / 3212 / 1009
4096 x 1024                                               1402 / 2162 / 765
============  ====================  ====================  ====================

Each shape is therefore measured once for a machine, a version of torch and a number of threads, when a model is loaded,
and the times are kept in the user's cache. A choice is made before the first pass and stays: the same pass always
rounds alike. ``VIDSPEC_LAYOUT`` sets one layout for all weights.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Literal, TypeAlias, cast

import torch

from vidspec.engine.device import processor
from vidspec.engine.matrix import FloatLayout, can_pack, float_matrix
from vidspec.errors import DeviceError
from vidspec.user_cache import cache_file, write_cached

__all__ = [
    "LARGE",
    "ROWS",
    "VARIABLE",
    "LayoutTimes",
    "Packing",
    "WeightShape",
    "choose_fastest",
    "choose_float_layout",
    "known_times",
    "layout_times",
    "second_copy_bytes",
]

#: Packed layouts that are allowed: none; one that needs no second copy of a weight; or all.
Packing: TypeAlias = Literal["none", "once", "copies"]
#: (out, in) of a weight, and True if another module uses it too.
WeightShape: TypeAlias = tuple[tuple[int, int], bool]
#: Rows whose products are timed: plain decoding, a short draft window, a block, a prompt.
ROWS = (1, 6, 16, 64)
#: Seconds of a product by layout, for each number of :data:`ROWS`.
LayoutTimes: TypeAlias = Mapping[str, Sequence[float]]
#: Environment variable that names one layout for all weights.
VARIABLE = "VIDSPEC_LAYOUT"
#: Smallest weight, in numbers, that stays (out, in) where nothing is measured; smaller ones are stored as (in, out).
LARGE = 2**20

_SINGLE: tuple[FloatLayout, ...] = ("plain", "transposed", "packed")
#: Numbers of a weight that are measured: outputs beyond change nothing but the measurement's time. With three layouts
#: in turn this is more than most caches hold, as the weights of a model are.
_MEASURED = 2**22
#: A single layout may be this much slower than one with a second copy, at its worst number of rows.
_MARGIN = 1.1
#: Fewest rounds of a measurement, and the seconds that it takes: at least, and until its times must have settled.
_ROUNDS, _SECONDS = 4, (0.004, 0.03)
#: Settled times: the least of even rounds and the least of odd ones differ by no more than this factor.
_SETTLED = 1.1

_known: dict[Path, dict[str, LayoutTimes]] = {}
_lock = threading.RLock()


def choose_float_layout(
    shape: tuple[int, int], dtype: torch.dtype, packing: Packing, *, shared: bool = False
) -> FloatLayout:
    """Return the layout of a weight on a CPU.

    Args:
        shape: (out, in).
        dtype: of the weight.
        packing: packed layouts that are allowed; with none, nothing is measured.
        shared: another module uses the weight too, as (out, in).

    Raises:
        DeviceError: :data:`VARIABLE` names no layout.
    """
    packable, transposable = can_pack(dtype), dtype is torch.float32 and not shared
    if (forced := os.environ.get(VARIABLE)) is not None and forced != "":
        if forced not in _SINGLE:
            raise DeviceError(
                f"{VARIABLE}={forced}: no such layout", hint=f"set it to one of {', '.join(_SINGLE)}, or unset it"
            )
        usable = {"plain": True, "transposed": transposable, "packed": packable}[forced]
        return forced if usable else "plain"
    if packing == "none" or not packable:
        return "transposed" if transposable and math.prod(shape) < LARGE else "plain"
    return choose_fastest(layout_times(shape, dtype), copies=packing == "copies", shared=shared)


def choose_fastest(times: LayoutTimes, *, copies: bool, shared: bool = False) -> FloatLayout:
    """Return the layout whose worst number of rows is the least slower than the fastest layout there.

    Two copies, the packed one for two rows and more, are chosen only if one is more than a tenth slower somewhere.

    Args:
        times: of ``plain``, and others if they were measured.
        copies: a second copy is allowed.
        shared: the weight itself stays plain, so a packed one is a second copy.
    """
    best = [min(column) for column in zip(*times.values(), strict=True)]

    def slowdown(by_rows: Sequence[float]) -> float:
        return float(max(taken / least for taken, least in zip(by_rows, best, strict=True)))

    single = min(["plain"] if shared else times, key=lambda name: slowdown(times[name]))
    packed = times.get("packed")
    if not copies or packed is None:
        return cast(FloatLayout, single)
    first = min(("plain",) if shared else times.keys() - {"packed"}, key=lambda name: (times[name][0], name))
    doubled = {f"{first}+packed": [times[first][0], *packed[1:]]} | ({"packed": packed} if shared else {})
    double = min(doubled, key=lambda name: slowdown(doubled[name]))
    return cast(FloatLayout, double if slowdown(times[single]) > _MARGIN * slowdown(doubled[double]) else single)


def second_copy_bytes(shapes: Iterable[WeightShape], dtype: torch.dtype) -> int:
    """Return the bytes of second copies of weights on a CPU, where all that pay are made."""
    copied = 0
    for shape, shared in shapes:
        layout = choose_float_layout(shape, dtype, "copies", shared=shared)
        if layout.endswith("+packed") or (shared and layout == "packed"):
            copied += math.prod(shape) * dtype.itemsize
    return copied


def layout_times(shape: tuple[int, int], dtype: torch.dtype) -> LayoutTimes:
    """Return the times of a weight's layouts with the current number of threads, measured if they are not known."""
    measured = min(shape[0], max(64, _MEASURED // shape[1])), shape[1]
    key = f"{measured[0]}x{measured[1]} {str(dtype).removeprefix('torch.')}"
    with _lock:
        known = known_times()
        if key not in known:
            times = _measure(measured, dtype)
            known.update({key: times, **_read()})  # another process may have measured it meanwhile: its times hold
            write_cached(_file(), json.dumps(known, indent=1).encode())
        return known[key]


def known_times() -> dict[str, LayoutTimes]:
    """Return the known times of this machine, version of torch and number of threads, by shape and dtype."""
    with _lock:
        if (file := _file()) not in _known:
            _known[file] = _read()
        return _known[file]


def _file() -> Path:
    facts = json.dumps([processor(), torch.__version__, torch.get_num_threads(), ROWS])
    return cache_file("layouts", f"{blake2b(facts.encode(), digest_size=8).hexdigest()}.json")


def _read() -> dict[str, LayoutTimes]:
    """Return the times in the file; none if it is absent or damaged."""
    try:
        content = json.loads(_file().read_bytes())
        return {str(key): _times(by_layout) for key, by_layout in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _times(by_layout: dict[str, list[float]]) -> LayoutTimes:
    """Return times as they were written, checked."""
    times = {name: [float(seconds) for seconds in column] for name, column in by_layout.items()}
    if "plain" not in times or not times.keys() <= {*_SINGLE}:
        raise ValueError("no times of layouts")
    if any(len(column) != len(ROWS) or not min(column) > 0 for column in times.values()):
        raise ValueError("no times of rows")
    return times


@torch.inference_mode()
def _measure(shape: tuple[int, int], dtype: torch.dtype) -> LayoutTimes:
    """Return the least times of a weight's layouts, which take turns: other programs disturb all alike.

    A choice by disturbed times would stay for good, so a disturbed measurement goes on for a while. In bfloat16 (in,
    out) was never the fastest.
    """
    weight, names = (
        torch.ones(shape, dtype=dtype),
        [one for one in _SINGLE if one != "transposed" or dtype.itemsize > 2],
    )
    matrices = {name: float_matrix(weight, None, name) for name in names}
    times: dict[str, list[float]] = {name: [] for name in matrices}
    for count in ROWS:
        rows = torch.ones(count, shape[1], dtype=dtype)
        taken: dict[str, list[float]] = {name: [] for name in matrices}
        begun = time.perf_counter()
        while _goes_on([*taken.values()], time.perf_counter() - begun):
            for name, matrix in matrices.items():
                start = time.perf_counter()
                matrix(rows)
                taken[name].append(time.perf_counter() - start)
        for layout, seconds in taken.items():
            times[layout].append(min(seconds))
    return times


def _goes_on(taken: Sequence[Sequence[float]], elapsed: float) -> bool:
    """Return True if a measurement needs another round: it is short, or disturbed and not yet long.

    Args:
        taken: seconds of each layout's products so far.
        elapsed: seconds of the whole measurement.
    """
    least, most = _SECONDS
    if len(taken[0]) < _ROUNDS or elapsed < least:
        return True
    halves = [sorted((min(seconds[::2]), min(seconds[1::2]))) for seconds in taken]
    return elapsed < most and any(late > _SETTLED * early for early, late in halves)
