"""Constants of the speed predictions, each with its source. No torch.

*Measured*: on one H100 and its host, with bfloat16 weights of Qwen2.5-VL-7B's shape (docs/research/measured/gpu.md);
taken to hold on other cards. They are fitted by hand to the times of kernels, of single passes and of rounds, which
they give within 6%, before the kernels of attention and of four-bit products were mended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

__all__ = [
    "CACHE_USE",
    "DECODE_USE",
    "FEWEST_ROWS",
    "FLOPS_USE",
    "HOST",
    "HOST_CLIP",
    "IDLE",
    "KERNEL_RATES",
    "LAUNCH",
    "PER_CLIP",
    "PRODUCT_USE",
    "SMALL",
    "TOWER_FLOPS",
    "WAIT",
    "WeightPrecision",
]

WeightPrecision = Literal["bfloat16", "int8", "int4"]

#: Share of the data sheet's bandwidth that products in 16 bits reach. Measured: 14.1 GB in 5.41 ms of kernels.
PRODUCT_USE = 0.78
#: The same of keys and values. Measured: 2.6 to 3.0 TB/s between 2,000 and 25,000 entries of 1, 4 and 16 clips.
CACHE_USE = 0.87
#: Most bytes of codes per second that products reach, from so many rows on. Measured: 113 kernels of 36 us, of 42 us
#: with 16 rows, over what are 3.98 GB since scale and zero of a group take four bytes; int8 from the time of rounds.
KERNEL_RATES: Mapping[WeightPrecision, Mapping[int, float]] = {
    "int8": {1: 2.1e12},
    "int4": {1: 0.98e12, 16: 0.83e12},
}
#: Share of the data sheet's operations that passes reach: assumed.
FLOPS_USE = 0.7
#: Share of the bandwidth that passes reach with their small kernels and the host. Measured: 52 to 58%.
DECODE_USE = 0.55
#: Most operations per second of a vision tower. Measured: 128 to 133 TFLOP/s, of Qwen2.5-VL's.
TOWER_FLOPS = 130e12
#: Seconds of a kernel beyond its bytes with the gap before it, and the same for each clip. Measured: passes of chains.
SMALL, PER_CLIP = 2.0e-6, 0.3e-6
#: The same times the share of a replayed pass's rows that are idle. Measured: attention of 1 and of 6 rows of 8.
IDLE = 2.25e-6
#: Rows of the smallest replayed pass that is not one of a chain.
FEWEST_ROWS = 8
#: Seconds of the host for each replayed pass or chain that it waits for, and for each further clip. Measured: time of
#: rounds without that of kernels.
HOST, HOST_CLIP = 0.7e-3, 0.04e-3
#: Seconds of a launch from Python. Measured: passes of 436 to 1,305 kernels, with torch's attention, took 16 to 58 ms.
LAUNCH = 38e-6
#: Seconds until the host has the result of a pass that is not replayed: assumed.
WAIT = 20e-6
