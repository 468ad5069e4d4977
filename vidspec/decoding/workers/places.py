"""Where the draft works, and whether it gets a process of its own."""

from __future__ import annotations

import torch

from vidspec.models import loading
from vidspec.profile.profiles import Profile

__all__ = ["beside_target", "two_workers"]


def two_workers(profile: Profile) -> bool:
    """Whether the draft gets a process: where the schedule wants it, and for a plan where it has cores or a device."""
    if not profile.plans:
        return profile.concurrent or profile.chooses
    where, beside = loading.placement(profile.workers.target or profile.models.device), beside_target(profile)
    if not profile.drafts_with_a_model:
        return False
    return where.device != beside.device or (
        where.device.type == "cpu" and (profile.models.threads or torch.get_num_threads()) > 1
    )


def beside_target(profile: Profile) -> loading.Placement:
    """Where the draft runs."""
    wanted = profile.models
    device = profile.workers.draft or wanted.draft_device or wanted.device
    return loading.placement(device, wanted.dtype, wanted.decoder, packed=wanted.packed)
