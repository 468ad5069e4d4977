"""Loads two checkpoints and prints, in bytes, what the second adds to this process, and what its layouts hold.

    python resident.py FIRST SECOND DTYPE

The first has the libraries imported that any model needs.
"""

import os
import sys
from pathlib import Path

import torch

from vidspec.engine.layouts import stored_bytes
from vidspec.models.loading import load_model
from vidspec.models.placement import resolve_placement


def resident_memory() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def main(first: str, second: str, dtype: str) -> None:
    where = resolve_placement("cpu", dtype)
    load_model(first, where)
    before = resident_memory()
    model = load_model(second, where)
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in model.model.parameters()}
    print(resident_memory() - before, sum(storages.values()) + stored_bytes(model.decoder.matrices))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
