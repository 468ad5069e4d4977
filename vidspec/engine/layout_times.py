"""The fastest layout of a weight on this CPU, by measurement.

No rule holds on two vendors. Microseconds of a float32 product of one thread, plain / stored as (in, out) / packed, and
of two threads, plain / split / stored as (in, out) / packed, the weights of a whole model in turn:

============  ====================  ====================  ====================  ==========================
out x in      AMD Zen 5, 1 row      AMD Zen 5, 6 rows     Intel, AVX-512, 6     AMD Zen 4, 2 threads, 1 row
============  ====================  ====================  ====================  ==========================
1024 x 256    15 / 12 / 23          57 / 95 / 25          58 / 45 / 53          98 / 33 / 60 / 69
9728 x 896    1508 / 998 / 681      3230 / 3212 / 1009                          2212 / 752 / 1797 / 1671
4096 x 1024                                               1402 / 2162 / 765
============  ====================  ====================  ====================  ==========================

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
from vidspec.engine.huge_pages import share_new_memory
from vidspec.engine.matrix import FEW, FloatLayout, can_pack, can_split, float_matrix
from vidspec.errors import DeviceError
from vidspec.user_cache import cache_file, write_cached

#: Packed layouts that are allowed: none; one that needs no second copy of a weight; or all.
Packing: TypeAlias = Literal["none", "once", "copies"]
#: (out, in) of a weight, and True if another module uses it too.
WeightShape: TypeAlias = tuple[tuple[int, int], bool]
#: Rows whose products are timed: plain decoding, a short draft window, a block, a prompt.
ROWS = (1, FEW, 16, 64)
#: Seconds of a product by layout, for each number of :data:`ROWS`.
LayoutTimes: TypeAlias = Mapping[str, Sequence[float]]
#: Environment variable that names one layout for all weights.
VARIABLE = "VIDSPEC_LAYOUT"
#: Smallest weight, in numbers, that stays (out, in) where nothing is measured; smaller ones are stored as (in, out).
LARGE = 2**20

_SINGLE: tuple[FloatLayout, ...] = ("plain", "split", "transposed", "packed")
#: Those that leave a weight (out, in), which another module may use too.
_SHARED: tuple[FloatLayout, ...] = ("plain", "split")
#: Numbers of a weight that are measured, and the factor of the number of its outputs: outputs beyond change nothing but
#: the measurement's time.
_MEASURED, _OUTPUTS = 2**22, 64
#: Rows are multiplied with several small weights in turn, of together so many numbers, but a single row not with more
#: weights than this, and several rows with a quarter of them: with all layouts in turn that is more than most caches
#: hold, as the weights of a model are.
_TOGETHER, _COPIES = 2**21, 32
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
    splittable = can_split(shape[0], dtype)
    if (forced := os.environ.get(VARIABLE)) is not None and forced != "":
        if forced not in _SINGLE:
            raise DeviceError(
                f"{VARIABLE}={forced}: no such layout", hint=f"set it to one of {', '.join(_SINGLE)}, or unset it"
            )
        usable = {"plain": True, "split": splittable, "transposed": transposable, "packed": packable}[forced]
        return forced if usable else "plain"
    if packing == "none" or not packable:
        return "transposed" if transposable and math.prod(shape) < LARGE else "plain"
    return choose_fastest(layout_times(shape, dtype), copies=packing == "copies", shared=shared)


def choose_fastest(times: LayoutTimes, *, copies: bool, shared: bool = False) -> FloatLayout:
    """Return the layout that is the least slower than the fastest for each number of rows, in the geometric mean.

    Two copies, the packed one for two rows and more or for more than few, are chosen only if one is more than a tenth
    slower somewhere.

    Args:
        times: of ``plain``, and others if they were measured.
        copies: a second copy is allowed.
        shared: the weight itself stays (out, in), so a packed one is a second copy.
    """
    best = [min(column) for column in zip(*times.values(), strict=True)]

    def slowdown(by_rows: Sequence[float]) -> float:
        return float(max(taken / least for taken, least in zip(by_rows, best, strict=True)))

    kept = [name for name in times if name in _SHARED] if shared else [*times]
    single = min(kept, key=lambda name: math.prod(times[name]))
    packed = times.get("packed")
    if not copies or packed is None:
        return cast(FloatLayout, single)
    first = min((name for name in kept if name != "packed"), key=lambda name: times[name][0])
    doubled = {"packed": packed} if shared else {}
    if first == "split":
        doubled["split+packed"] = [*times[first][:2], *packed[2:]]
    doubled["split1+packed" if first == "split" else f"{first}+packed"] = [times[first][0], *packed[1:]]
    double = min(doubled, key=lambda name: math.prod(doubled[name]))
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
    measured = min(shape[0], max(1, _MEASURED // shape[1] // _OUTPUTS) * _OUTPUTS), shape[1]
    key = f"{measured[0]}x{measured[1]} {str(dtype).removeprefix('torch.')}"
    with _lock:
        known = known_times()
        if key not in known:
            share_new_memory()  # so that none of the measurement stays with a model's weights
            times = _measure(measured, dtype)
            share_new_memory()
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
    facts = json.dumps([processor(), torch.__version__, torch.get_num_threads(), ROWS, _SINGLE])
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
    out) and parts were never the fastest.
    """
    single = [one for one in _SINGLE if one not in ("split", "transposed") or dtype is torch.float32]
    names = [one for one in single if one != "split" or can_split(shape[0], dtype)]
    weights = [torch.ones(shape, dtype=dtype) for _ in range(max(1, min(_COPIES, _TOGETHER // math.prod(shape))))]
    matrices = {name: [float_matrix(weight, None, name) for weight in weights] for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for count in ROWS:
        rows = torch.ones(count, shape[1], dtype=dtype)
        taken: dict[str, list[float]] = {name: [] for name in names}
        begun = time.perf_counter()
        while _goes_on([*taken.values()], time.perf_counter() - begun):
            for name, copies in matrices.items():
                used = copies if count == 1 else copies[: _COPIES // 4]
                start = time.perf_counter()
                for matrix in used:
                    matrix(rows)
                taken[name].append((time.perf_counter() - start) / len(used))
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
