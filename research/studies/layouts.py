"""Cost of a pass at published sizes in each weight layout: ``python -m research.studies.layouts [SIZE ...]``.

Language models with random weights on the CPU, one thread, one sequence with ``--entries`` entries in its cache. All
layouts of a size that fit into memory take turns, so that their ratios are those of one run. Also reports the bytes
that one pass reads, as a share of those that a sum over a large buffer reads in the same time. Prints Markdown.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import NamedTuple

import torch

from research.random_decoder import behind, engine_of, language, rolled_back
from research.sizes import SIZES, Size
from vidspec import memory
from vidspec.bench.machine import machine
from vidspec.bench.tables import facts_line, table
from vidspec.bench.turns import measure_in_turns, time_call
from vidspec.engine.layout_times import VARIABLE
from vidspec.engine.layouts import WeightFormat
from vidspec.engine.matrix import FloatLayout
from vidspec.engine.rows import Rows

CPU = torch.device("cpu")
ROWS = (1, 6, 16)


class Layout(NamedTuple):
    """Layout of all weights, or None for the measured ones; dtype, codes, and bytes per weight."""

    dtype: torch.dtype
    layout: FloatLayout | None
    wanted: WeightFormat
    bytes: float


LAYOUTS = {
    "float32": Layout(torch.float32, None, None, 8),
    "float32 plain": Layout(torch.float32, "plain", None, 4),
    "float32 split": Layout(torch.float32, "split", None, 4),
    "float32 transposed": Layout(torch.float32, "transposed", None, 4),
    "float32 packed": Layout(torch.float32, "packed", None, 4),
    "bfloat16": Layout(torch.bfloat16, None, None, 2),
    "bfloat16 plain": Layout(torch.bfloat16, "plain", None, 2),
    "int8": Layout(torch.float32, None, "int8", 1.1),
    "int4": Layout(torch.float32, None, "int4", 0.7),
}


class Contender(NamedTuple):
    """A model in a layout: bytes read by a pass, and passes of one sequence by rows."""

    read: int
    passes: dict[int, Callable[[], object]]

    def time(self, rows: int) -> float:
        """Return the seconds of a pass."""
        return time_call(self.passes[rows])


@contextmanager
def set_layout(layout: FloatLayout | None) -> Iterator[None]:
    """Set the layout of the weights of models that are created meanwhile; None for the measured ones."""
    before = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = layout or ""
    try:
        yield
    finally:
        os.environ[VARIABLE] = before


def contender(size: Size, layout: Layout, entries: int) -> Contender:
    with set_layout(layout.layout):
        model = language(size, CPU, layout.dtype, wanted=layout.wanted)
    memory.release_memory()
    engine, spans = engine_of(model), behind(model, 1, entries, max(ROWS))
    return Contender(
        model.weight_bytes + entries * model.decoder.slab.entry_bytes,
        {rows: partial(rolled_back, spans, partial(engine.run, [Rows(spans[0], [0] * rows)])) for rows in ROWS},
    )


def read_rate(megabytes: int = 512, repeats: int = 8) -> float:
    """Return the bytes per second read by the fastest of several sums over a buffer."""
    buffer = torch.ones(megabytes * 2**20 // 4)
    return buffer.nbytes / min(time_call(buffer.sum) for _ in range(repeats))


def fits(size: Size, layout: Layout, free: int | None) -> bool:
    """Return True if a model can be created in ``free`` bytes; codes are made from float32."""
    return free is None or 1.15 * size.parameters * (4 if layout.wanted else layout.bytes) + 2**30 < free


def measured(name: str, layouts: Sequence[str], entries: int, repeats: int) -> list[tuple[str, ...]]:
    """Return table lines, one for each layout that fits along with those before it; codes are made first."""
    size, found = SIZES[name], dict[str, Contender]()
    for label in sorted(layouts, key=lambda label: LAYOUTS[label].bytes):
        layout = LAYOUTS[label]
        if not fits(size, layout, memory.available_memory()):
            print(f"{name} {label}: too little memory", file=sys.stderr)
            continue
        found[label] = contender(size, layout, entries)
        gc.collect()
    rate = read_rate()
    timed = measure_in_turns({label: one.time for label, one in found.items()}, ROWS, repeats)
    seconds = {label: {rows: median(taken) for rows, taken in by.items()} for label, by in timed.items()}
    base = next(label for label in layouts if label in found)
    return [
        (
            name,
            label,
            *(f"{1e3 * seconds[label][rows]:.0f}" for rows in ROWS),
            f"{one.read / 1e6:,.2f} MB",
            f"{one.read / rate / seconds[label][1]:.0%}",
            f"{seconds[label][1] / seconds[base][1]:.2f}",
        )
        for label, one in ((label, found[label]) for label in layouts if label in found)
    ]


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=["0.5B", "3B"], help="of " + ", ".join(SIZES))
    parser.add_argument("--layouts", default=";".join(LAYOUTS), help="of " + "; ".join(LAYOUTS))
    parser.add_argument("--entries", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    asked = parser.parse_args(args)
    torch.set_num_threads(1)
    heads = ["size", "layout", *(f"{rows} rows, ms" for rows in ROWS), "read", "of read bandwidth", "of the first"]
    layouts, lines = asked.layouts.split(";"), list[tuple[str, ...]]()
    for name in asked.sizes:
        lines += measured(name, layouts, asked.entries, asked.repeats)
        gc.collect()
    print(facts_line(machine(CPU)), table(heads, lines), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
