"""Whether the devices' memory takes a clip beside those in flight, by arithmetic ahead of its first pass.

A clip takes entries of each model's slab until it is captioned, and bytes until its prompts have been read: its visual
tokens and the embedded prompt. The tower works on one clip at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from vidspec.engine.decoder import LanguageModel
from vidspec.engine.device import free_memory
from vidspec.engine.slab import Slab

__all__ = ["SHARE", "MemoryClaim", "has_room", "reserve_memory"]

#: Of the memory that is free on a device, what further clips may take; passes need some too.
SHARE = 0.8


class MemoryClaim(NamedTuple):
    """What a clip takes of one model and its device.

    Attributes:
        model: that reads it.
        entries: of the slab, the prompt's and those behind it.
        prompt: bytes until the prompt has been read.
        tower: bytes while it is encoded, by one clip at a time.
        beside: bytes until it is captioned, of a slab that is not known here.
    """

    model: LanguageModel
    entries: int
    prompt: int
    tower: int
    beside: int = 0


def has_room(claims: Sequence[MemoryClaim]) -> bool:
    """Whether there is room for all of these clips beside what is allocated now."""
    needed, towers = Counter[torch.device](), Counter[torch.device]()
    for claim in claims:
        device = claim.model.device
        needed[device] += claim.prompt + claim.beside + claim.model.decoder.state_bytes
        towers[device] = max(towers[device], claim.tower)
    for slab, entries in _entries(claims).items():
        for device, share in slab.shares.items():
            needed[device] += int(share * slab.growth_bytes(entries))
    free = {device: free_memory(device) for device in needed}
    return all(size is None or needed[device] + towers[device] <= SHARE * size for device, size in free.items())


def reserve_memory(claims: Sequence[MemoryClaim], clips: int) -> None:
    """Allocate the slabs on devices for as many clips like this one as fit while one is read, ``clips`` at most.

    A slab that grows moves, which voids what was captured of passes; it still does where clips are longer.
    """
    if any(claim.model.device.type != "cpu" for claim in claims):
        read = [claim._replace(prompt=0) for claim in claims]
        count = next((count for count in range(clips, 1, -1) if has_room([*claims, *read * (count - 1)])), 0)
        for slab, entries in _entries(claims).items():
            slab.reserve(entries * count)


def _entries(claims: Iterable[MemoryClaim]) -> Counter[Slab]:
    found = Counter[Slab]()
    for claim in claims:
        found[claim.model.decoder.slab] += claim.entries
    return found
