"""Data sheets of NVIDIA cards, by which speed is predicted. No torch."""

from __future__ import annotations

import re
from typing import NamedTuple

from vidspec.errors import UsageError
from vidspec.registry import nearest

__all__ = ["CARDS", "Card", "card_of_device", "named_card"]


class Card(NamedTuple):
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

    @property
    def usable(self) -> float:
        """Bytes that a process can allocate: all but those of the driver and of kernels."""
        return 0.95 * self.memory


#: Those whose passes are replayed (compute capability 8.0 and above), by a short name; of several sizes or forms the
#: one with SXM or the most memory, unless named.
CARDS = {
    "l4": Card("L4", 0.300e12, 121e12, 24e9),
    "a10": Card("A10", 0.600e12, 125e12, 24e9),
    "l40s": Card("L40S", 0.864e12, 362e12, 48e9),
    "a6000": Card("RTX A6000", 0.768e12, 155e12, 48e9),
    "6000ada": Card("RTX 6000 Ada Generation", 0.960e12, 364e12, 48e9),
    "3090": Card("RTX 3090", 0.936e12, 71e12, 24e9),
    "4080": Card("RTX 4080", 0.717e12, 97e12, 16e9),
    "4090": Card("RTX 4090", 1.008e12, 165e12, 24e9),
    "5090": Card("RTX 5090", 1.792e12, 209e12, 32e9),
    "a100": Card("A100 80GB", 2.039e12, 312e12, 80e9),
    "a100-40gb": Card("A100 40GB", 1.555e12, 312e12, 40e9),
    "h100": Card("H100", 3.35e12, 989e12, 80e9),
    "h100-pcie": Card("H100 PCIe", 2.0e12, 756e12, 80e9),
    "h200": Card("H200", 4.8e12, 989e12, 141e9),
    "b200": Card("B200", 8.0e12, 2250e12, 180e9),
}
#: Words of a driver's names, the most special first, each with its card.
_WORDS = (
    ("a100 sxm4 40gb", "a100-40gb"),
    ("a100 pcie 40gb", "a100-40gb"),
    ("h100 pcie", "h100-pcie"),
    ("rtx 6000 ada", "6000ada"),
    ("rtx a6000", "a6000"),
    *((re.sub(r"^(\d)", r"rtx \1", name), name) for name in CARDS),
)
#: Cards below 8.0, whose passes are not replayed.
_OLD = re.compile(r"\b(t4|t4g|v100|p4|p40|p100|titan|quadro|(gtx-)?1[06]\d0|(rtx-)?20\d0)\b")


def named_card(name: str) -> Card:
    """Return the card of a name that a user types: a key of :data:`CARDS`, or the driver's name of it.

    Raises:
        UsageError: there is no data sheet of such a card.
    """
    words = name.lower().replace(" ", "-")
    if (found := CARDS.get(words) or card_of_device(name)) is None:
        problem = "speeds are predicted from compute capability 8.0 on" if _OLD.search(words) else "no such data sheet"
        guess = nearest(words, CARDS)
        hint = f"did you mean {guess}? " if guess is not None else ""
        raise UsageError(f"--card {name}: {problem}", hint=f"{hint}known: {', '.join(CARDS)}")
    return found


def card_of_device(name: str) -> Card | None:
    """Return the card of a device by its driver's name, such as ``NVIDIA H100 80GB HBM3``; None if it is not known.

    Laptops and smaller variants (Ti, SUPER, D, MIG slices) have other data sheets, and are not known.
    """
    said = " ".join(re.findall(r"[a-z0-9]+", name.lower()))
    if re.search(r"\b(laptop|max q|ti|super|d|mig|nvl|vgpu)\b", said):
        return None
    return next((CARDS[card] for words, card in _WORDS if re.search(rf"\b{words}\b", said)), None)
