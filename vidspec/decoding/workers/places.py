"""Placement of target and draft."""

from __future__ import annotations

from dataclasses import replace

import torch

from vidspec.config.profiles import Profile
from vidspec.engine.layouts import WeightFormat
from vidspec.models.placement import Placement, resolve_placement

__all__ = ["draft_placement", "has_room_for_two", "target_placement"]


def has_room_for_two(target: torch.device, draft: torch.device, threads: int | None = None) -> bool:
    """Return True if running both at once is faster than in turns: two devices, or a CPU with several cores.

    Args:
        target, draft: their devices.
        threads: torch threads on a CPU; the current number if None.
    """
    return target != draft or (target.type == "cpu" and (threads or torch.get_num_threads()) > 1)


def target_placement(profile: Profile) -> Placement:
    """Return the target's placement and weight format."""
    wanted = profile.models
    where = resolve_placement(
        profile.workers.target or wanted.device,
        wanted.dtype,
        wanted.decoder,
        wanted.device_map,
        wanted.quantization,
        wanted.packed,
        wanted.weights,
    )
    return replace(where, adapter=wanted.adapter, fitted=where.fitted and wanted.pair is None)


def draft_placement(profile: Profile) -> Placement:
    """Return the draft's placement (as named, else on a second GPU if there is one) and weight format."""
    wanted, precision = profile.models, profile.draft.precision
    weights: WeightFormat = "auto" if precision == "auto" else None
    if precision == "int8" or precision == "int4":
        weights = precision
    elif profile.drafts_with_the_target:
        weights = wanted.weights
    device = profile.workers.draft or wanted.draft_device or wanted.device
    if profile.takes_second_gpu and torch.cuda.is_available() and torch.cuda.device_count() > 1:
        device = "cuda:1"
    where = resolve_placement(device, wanted.dtype, wanted.decoder, packed=wanted.packed, weights=weights)
    return replace(where, fitted=where.fitted and wanted.pair is None)
