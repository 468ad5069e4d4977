"""Loads two checkpoints and prints, in bytes, what the second adds to this process, and what its layouts hold.

    python resident.py FIRST SECOND DTYPE

The first has the libraries imported that any model needs.
"""

import sys

import torch

from vidspec import memory
from vidspec.engine.layouts import stored_bytes
from vidspec.models.loading import load_model
from vidspec.models.placement import resolve_placement


def main(first: str, second: str, dtype: str) -> None:
    where = resolve_placement("cpu", dtype)
    load_model(first, where)
    before = memory.resident_memory()
    model = load_model(second, where)
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in model.model.parameters()}
    print(memory.resident_memory() - before, sum(storages.values()) + stored_bytes(model.decoder.matrices))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
