"""Memory admission: arithmetic, ahead of a clip's first pass, on whether it fits alongside those in flight.

A clip takes entries of each model's slab until it is captioned. Until its prompts have been read it also takes bytes
for its visual tokens and the embedded prompt. A pass of the tower takes one clip, or several within a byte budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from vidspec.engine.decoder import LanguageModel
from vidspec.engine.device import free_memory
from vidspec.engine.slab import Slab
from vidspec.errors import GenerationError
from vidspec.models.memory_estimate import BUDGET
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.vision import shares_passes

if TYPE_CHECKING:
    from vidspec.decoding.setup import DecodingSetup
    from vidspec.models.request import CaptionRequest

#: Share of a device's free memory for further clips; passes need some too.
SHARE = 0.8


class MemoryClaim(NamedTuple):
    """Memory that a clip needs on one model's device.

    Attributes:
        model: the model that reads the clip.
        entries: slab entries of the prompt and the tokens after it.
        prompt: bytes until the prompt has been read.
        tower: bytes of a tower's pass while it is encoded.
        other_slab: bytes, until it is captioned, of a slab in another process.
    """

    model: LanguageModel
    entries: int
    prompt: int = 0
    tower: int = 0
    other_slab: int = 0


def memory_claims(setup: DecodingSetup, request: CaptionRequest) -> list[MemoryClaim]:
    """Return the memory that a clip needs for each model.

    A draft counts as if it saw what the target sees. A draft in another process on the target's device, whose slab is
    not known here, counts as much memory as the target.
    """
    profile, model, sound = setup.profile, setup.target.model, request.frames.sound
    frames, height, width, _ = request.frames.frames.shape
    size = frames, height, width
    text = request.prompt or profile.generate.prompt, request.system or profile.generate.system, request.earlier
    visual = 0 if request.text_only else model.visual_tokens(*size)
    visual += 0 if sound is None else model.audio_tokens(len(sound))
    tokens = visual + model.template.text_token_count(*text)
    own = model.clip_memory(size, visual, tokens, setup.room)
    claims = [MemoryClaim(model, own.entries, own.prompt, own.tower)]
    if setup.draft is not None and profile.draft.has_video:
        needed = setup.draft.model.clip_memory(size, visual, tokens, setup.room)
        claims.append(MemoryClaim(setup.draft.model, needed.entries, needed.prompt, needed.tower))
    if setup.slot is not None and setup.slot.device == model.device and profile.draft.has_video:
        claims.append(MemoryClaim(model, 0, own.prompt, own.tower, other_slab=own.kv))
    if setup.head is not None:  # its prompt consists of states of several blocks of the target
        prompt = own.prompt * (1 + len(setup.head.model.blocks))
        claims.append(MemoryClaim(setup.head.model, own.entries, prompt))
    if profile.draft.is_target and not profile.concurrent:  # after a prompt of its own
        claims.append(MemoryClaim(model, own.entries))
    return claims


def has_room(claims: Sequence[MemoryClaim]) -> bool:
    """Return True if all of these clips fit in addition to what is allocated now."""
    needed = needed_bytes(claims)
    free = {device: free_memory(device) for device in needed}
    return all(size is None or needed[device] <= SHARE * size for device, size in free.items())


def needed_bytes(claims: Sequence[MemoryClaim]) -> Counter[torch.device]:
    """Return the bytes of clips on each device, beyond the slabs' unused entries and passes captured before."""
    needed, towers = Counter[torch.device](), Counter[torch.device]()
    for claim in claims:
        device = claim.model.device
        needed[device] += claim.prompt + claim.other_slab + claim.model.decoder.state_bytes
        together = min(BUDGET, towers[device] + claim.tower) if shares_passes(device) else 0
        towers[device] = max(towers[device], claim.tower, together)
    for model in {id(claim.model.decoder): claim.model for claim in claims}.values():
        if (graphs := model.decoder.graphs) is not None:
            needed[model.device] += graphs.bytes_to_capture
    for slab, entries in _entries_by_slab(claims).items():
        for device, share in slab.shares.items():
            needed[device] += int(share * slab.growth_bytes(entries))
    return needed + towers


def reserve_memory(claims: Sequence[MemoryClaim], clips: int) -> None:
    """Allocate the slabs on devices for as many clips like this one as fit while one is read, ``clips`` at most.

    A growing slab moves, which invalidates captured passes; it still grows for longer clips.
    """
    if any(claim.model.device.type != "cpu" for claim in claims):
        read = [claim._replace(prompt=0) for claim in claims]
        count = next((count for count in range(clips, 1, -1) if has_room([*claims, *read * (count - 1)])), 0)
        for slab, entries in _entries_by_slab(claims).items():
            slab.reserve(entries * count)


def _entries_by_slab(claims: Iterable[MemoryClaim]) -> Counter[Slab]:
    entries = Counter[Slab]()
    for claim in claims:
        entries[claim.model.decoder.slab] += claim.entries
    return entries


def check_prompt(setup: DecodingSetup, path: str, prompt: int) -> None:
    """Reject a prompt of at least ``prompt`` tokens that, with the text after it, exceeds the model or memory.

    Tokens count, even if a family numbers many of them with few positions (M-RoPE).

    Raises:
        GenerationError: of kind ``context`` or ``memory``.
    """
    model, tokens = setup.target.model, setup.profile.generate.max_new_tokens
    limit = _context_length(model)
    if limit is not None and prompt + tokens > limit:
        raise GenerationError(
            f"{path}: a prompt of {prompt} tokens and {tokens} new ones exceed the model's {limit}",
            hint="take fewer --frames, a lower --fps or fewer --max-new-tokens",
            kind="context",
        )
    for device, needed in needed_bytes([MemoryClaim(model, prompt + setup.room)]).items():
        free = free_memory(device)
        if free is not None and needed > free:
            raise GenerationError(
                f"{path}: the KV cache of {prompt + tokens} tokens takes {needed / 2**30:.1f} GiB, "
                f"and {free / 2**30:.1f} are free",
                hint="take fewer --frames, a lower --fps or a smaller --max-pixels",
                kind="memory",
            )


def _context_length(model: VideoLanguageModel) -> int | None:
    """Return the context length of the language model, if its config has one."""
    limit: int | None = getattr(model.language.config, "max_position_embeddings", None)
    return limit
