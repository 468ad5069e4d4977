"""Constants of the speed predictions, each with its source. No torch.

*Measured*: on one H100 and its host, with bfloat16 weights of Qwen2.5-VL-7B's shape (docs/research/measured/gpu.json);
taken to hold on other cards. They are fitted to the times of kernels, of single passes and of rounds, which they give
within 8%.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

WeightPrecision = Literal["bfloat16", "int8", "int4"]

#: Share of the data sheet's bandwidth that products in 16 bits reach. Measured: 14.1 GB in 5.4 ms of kernels.
PRODUCT_USE = 0.78
#: The same of keys and values. Measured: passes behind 2,000 and 25,000 entries of 1, 4 and 16 clips.
CACHE_USE = 0.84
#: Most bytes of codes per second that products reach, from so many rows on. Measured: 113 kernels of 18.2 us in four
#: bits, of 23.0 us with 16 rows, and of 26.0 us in eight, over 3.98 GB and 7.07 GB.
KERNEL_RATES: Mapping[WeightPrecision, Mapping[int, float]] = {
    "int8": {1: 2.4e12},
    "int4": {1: 1.93e12, 16: 1.53e12},
}
#: Share of the data sheet's operations that passes reach: assumed.
FLOPS_USE = 0.7
#: Share of the data sheet's operations that the reading of a prompt reaches. Measured: 45 to 56%.
PREFILL_USE = 0.5
#: Most operations per second of a vision tower. Measured: 381 to 399 TFLOP/s, of Qwen2.5-VL's.
TOWER_FLOPS = 390e12
#: Seconds of a kernel beyond its bytes with the gap before it, and the same for each clip. Measured: passes of chains.
SMALL, PER_CLIP = 2.3e-6, 0.08e-6
#: The same times the share of a replayed pass's rows that are idle. Measured: attention of 1 and of 6 rows of 8.
IDLE = 0.2e-6
#: Rows of the smallest replayed pass that is not one of a chain.
FEWEST_ROWS = 8
#: Seconds of the host for each replayed pass or chain that it waits for, and for each further clip. Measured: time of
#: rounds without that of kernels.
HOST, HOST_CLIP = 0.45e-3, 0.038e-3
#: Seconds of a launch from Python. Measured: 17.9 ms for 1,149 kernels of stock blocks; on another host of that card
#: they took more than twice as long.
LAUNCH = 16e-6
#: Seconds until the host has the result of a pass that is not replayed: assumed.
WAIT = 20e-6
