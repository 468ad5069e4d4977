"""Data sheets of NVIDIA cards, by which speed is predicted."""

from __future__ import annotations

from typing import NamedTuple


class DataSheet(NamedTuple):
    """Data sheet of a card.

    Attributes:
        name: in the words of the maker.
        bandwidth: bytes per second.
        flops: dense operations per second in bfloat16, summed in float32.
        memory: bytes.
    """

    name: str
    bandwidth: float
    flops: float
    memory: float


#: Those whose passes are replayed (compute capability 8.0 and above), by a short name; of several sizes or forms the
#: one with SXM or the most memory, unless named.
SHEETS = {
    "l4": DataSheet("L4", 0.300e12, 121e12, 24e9),
    "a10": DataSheet("A10", 0.600e12, 125e12, 24e9),
    "l40s": DataSheet("L40S", 0.864e12, 362e12, 48e9),
    "a6000": DataSheet("RTX A6000", 0.768e12, 155e12, 48e9),
    "6000ada": DataSheet("RTX 6000 Ada Generation", 0.960e12, 364e12, 48e9),
    "3090": DataSheet("RTX 3090", 0.936e12, 71e12, 24e9),
    "4080": DataSheet("RTX 4080", 0.717e12, 97e12, 16e9),
    "4090": DataSheet("RTX 4090", 1.008e12, 165e12, 24e9),
    "5090": DataSheet("RTX 5090", 1.792e12, 209e12, 32e9),
    "a100": DataSheet("A100 80GB", 2.039e12, 312e12, 80e9),
    "a100-40gb": DataSheet("A100 40GB", 1.555e12, 312e12, 40e9),
    "h100": DataSheet("H100", 3.35e12, 989e12, 80e9),
    "h100-pcie": DataSheet("H100 PCIe", 2.0e12, 756e12, 80e9),
    "h200": DataSheet("H200", 4.8e12, 989e12, 141e9),
    "b200": DataSheet("B200", 8.0e12, 2250e12, 180e9),
}
