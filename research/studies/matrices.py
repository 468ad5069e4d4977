"""Cost of one layer's product in each weight format: ``python -m research.studies.matrices``.

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
from torch import nn

from research.studies.layouts import CPU
from vidspec.bench.interleaved import machine
from vidspec.bench.tables import table
from vidspec.bench.turns import run_repeated, time_call
from vidspec.engine.matrix import MatrixWithPackedCopy, PlainMatrix
from vidspec.engine.quantised import Int4Matrix, Int8Matrix, choose_kernel

__all__ = ["main", "products"]

ROWS = (1, 6, 16, 128)


def products(inputs: int, outputs: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Return the layer's product in each format, for float32 rows (N, inputs)."""

    def layer(dtype: torch.dtype = torch.float32) -> nn.Linear:
        return nn.Linear(inputs, outputs, bias=False, dtype=dtype).requires_grad_(False)

    half, weight = PlainMatrix([layer(torch.bfloat16)]), layer().weight
    eight = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    return {
        "8 bits, of a checkpoint": Int8Matrix.from_codes(eight, torch.rand(outputs)),
        "8 bits, rounded when loaded": Int8Matrix.of(weight),
        "4 bits": Int4Matrix.of(weight),
        "float32": PlainMatrix([layer()]),
        "float32 with a packed copy": MatrixWithPackedCopy([layer()]),
        "bfloat16": lambda rows: half(rows.bfloat16()),
    }


@torch.inference_mode()
def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=2048)
    parser.add_argument("--outputs", type=int, default=11008)
    parser.add_argument("--repeats", type=int, default=15)
    asked = parser.parse_args(args)
    torch.set_num_threads(1)
    known = products(asked.inputs, asked.outputs)
    runs = {
        (name, count): partial(time_call, partial(product, torch.randn(count, asked.inputs)))
        for name, product in known.items()
        for count in ROWS
    }
    taken = {key: median(seconds) for key, seconds in run_repeated(runs, asked.repeats).items()}
    lines = [(name, *(f"{1e3 * taken[name, count]:.2f}" for count in ROWS)) for name in known]
    facts = ", ".join(f"{key} {value}" for key, value in machine(CPU).items())
    eight = choose_kernel(8, (asked.outputs, asked.inputs), "cpu")
    print(f"{asked.inputs} inputs, {asked.outputs} outputs, eight-bit products by {eight}; {facts}\n")
    print(table(("weights", *(f"{count} row{'s' * (count > 1)}, ms" for count in ROWS)), lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
