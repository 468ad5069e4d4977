"""Cost of one layer's product in each weight format and layout: ``python -m research.studies.matrices``.

A layer of published width with random weights on the CPU, one thread; all formats take turns. Prints Markdown: ms by
the number of rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from research.studies.layouts import CPU
from vidspec.bench.machine import machine
from vidspec.bench.tables import facts_line, table
from vidspec.bench.turns import measure_in_turns, time_call
from vidspec.engine.matrix import FloatLayout, can_pack, float_matrix
from vidspec.engine.quantised import Int4Matrix, Int8Matrix, choose_kernel

__all__ = ["main", "products"]

ROWS = (1, 6, 16, 128)


def products(inputs: int, outputs: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Return the layer's product in each format, for float32 rows (N, inputs)."""

    weight, half = torch.randn(outputs, inputs) * inputs**-0.5, torch.bfloat16
    eight = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    names: list[FloatLayout] = ["plain", "transposed", "packed"]
    found: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "8 bits, of a checkpoint": Int8Matrix.from_codes(eight, torch.rand(outputs)),
        "8 bits, rounded when loaded": Int8Matrix.of(weight),
        "4 bits": Int4Matrix.of(weight),
    }
    found |= {
        f"float32, {name}": float_matrix(weight, None, name)
        for name in names
        if name != "packed" or can_pack(weight.dtype)
    }
    for name in (names[0], names[2]) if can_pack(half) else names[:1]:
        matrix = float_matrix(weight.to(half), None, name)
        found[f"bfloat16, {name}"] = lambda rows, matrix=matrix: matrix(rows.bfloat16())  # type: ignore[misc]
    return found


@torch.inference_mode()
def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=2048)
    parser.add_argument("--outputs", type=int, default=11008)
    parser.add_argument("--repeats", type=int, default=15)
    asked = parser.parse_args(args)
    torch.set_num_threads(1)
    known = products(asked.inputs, asked.outputs)
    given = {count: torch.randn(count, asked.inputs) for count in ROWS}

    def time(product: Callable[[torch.Tensor], torch.Tensor], count: int) -> float:
        return time_call(partial(product, given[count]))

    timed = measure_in_turns({name: partial(time, product) for name, product in known.items()}, ROWS, asked.repeats)
    lines = [(name, *(f"{1e3 * median(by[count]):.2f}" for count in ROWS)) for name, by in timed.items()]
    eight = choose_kernel(8, (asked.outputs, asked.inputs), "cpu")
    facts = facts_line(machine(CPU))
    print(f"{asked.inputs} inputs, {asked.outputs} outputs, eight-bit products by {eight}; {facts}\n")
    print(table(("weights", *(f"{count} row{'s' * (count > 1)}, ms" for count in ROWS)), lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
