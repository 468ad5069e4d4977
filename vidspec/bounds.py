"""Bounds of numbers in profiles and options, checked before anything is loaded."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["COLDEST", "FASTEST", "HOTTEST", "LAYERS", "LONGEST_PROMPT", "MANY", "SEED", "STALL", "THREADS", "WIDEST"]

#: The largest seed of torch's generators.
SEED: Final = 2**63 - 1
#: Threads of one process; OpenMP aborts the process if it cannot create them.
THREADS: Final = max(64, 4 * (os.cpu_count() or 1))
#: Blocks of a model.
LAYERS: Final = 1024
#: Drafted tokens in one pass of the target, in a chain or a tree.
WIDEST: Final = 1024
#: Temperatures above 0: outside these, float32 scores overflow or all tokens are equally likely.
COLDEST: Final = 1e-3
HOTTEST: Final = 1e3
#: Frames per second.
FASTEST: Final = 240
#: Bytes of a file with a prompt, characters of a question in a pipe; the model's context bounds them further.
LONGEST_PROMPT: Final = 1 << 20
#: Seconds without a packet or a frame until reading a clip counts as hung.
STALL: Final = 60.0
#: Other counts: tokens of a text, entries of a cache, seconds of a wait.
MANY: Final = 1_000_000
