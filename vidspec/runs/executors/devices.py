"""Device assignment of a run's captioners: groups of GPUs or a share of the cores, for processes or Ray actors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from vidspec.errors import DeviceError, UsageError, option
from vidspec.events.tally import counted
from vidspec.runs.executors.base import DeviceGroup
from vidspec.runs.executors.ray import connect_ray
from vidspec.runs.feed import cores

if TYPE_CHECKING:
    from vidspec.config.schema import Profile

__all__ = ["device_groups"]


def device_groups(
    replicas: int | Literal["auto"] | None, profile: Profile, *, ray: bool = False, address: str | None = None
) -> list[DeviceGroup]:
    """Return one group of devices per captioner.

    A group has as many GPUs as the profile names (a draft on ``cuda:1`` makes it two). It has two if the models run
    concurrently without named devices and enough GPUs exist. With ``device_map``, all GPUs are shared evenly.

    Args:
        replicas: a number, or ``auto`` or None for one captioner per group of GPUs (one in total without GPUs).
        profile: profile of each captioner.
        ray: True if captioners are Ray actors: Ray then assigns the GPUs of each and hides the others.
        address: address of the Ray cluster, whose GPUs count for ``auto``.

    Raises:
        UsageError: the profile does not place the target on a group's first GPU.
        DeviceError: more captioners than groups of GPUs are requested, on a machine with GPUs.
    """
    wanted = replicas if isinstance(replicas, int) else None
    device = profile.models.device
    gpus = 0 if device.startswith(("cpu", "mps", "xpu")) else (_ray_gpu_count(address) if ray else _gpu_count())
    size = _group_size(profile, gpus, wanted or 1)
    count = wanted or max(1, gpus // size)
    if count > 1 and device.startswith("cuda:") and device != "cuda:0":
        raise UsageError(
            f"{option('replicas', count)}: {option('models.device')} names one device, {device}",
            hint=option("models.device", "cuda"),
        )
    if gpus:
        if count * size > gpus and (count > 1 or ray):
            each = f" of {size} each" if size > 1 else ""
            limit = max(1, gpus // size)
            message = f"{option('replicas', count)}{each}: this machine has {counted(gpus, 'GPU')}"
            raise DeviceError(message, hint=option("replicas", limit))
        if ray:
            return [DeviceGroup(gpus=size)] * count
        if count == 1:
            return [DeviceGroup()]
        names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        names = names if len(names) >= gpus else [str(number) for number in range(gpus)]
        return [DeviceGroup(visible=",".join(names[first : first + size])) for first in range(0, count * size, size)]
    if ray:
        return [DeviceGroup(threads=profile.models.threads or 1)] * count
    threads = profile.models.threads or max(1, cores() // count)
    return [DeviceGroup(threads=threads)] * count


def _group_size(profile: Profile, gpus: int, count: int) -> int:
    """Return the number of GPUs per captioner."""
    if profile.models.device_map is not None:
        return max(1, gpus // count)
    if profile.concurrent and profile.takes_second_gpu and gpus >= 2 * count:
        return 2
    named = (profile.models.device, profile.models.draft_device, profile.workers.target, profile.workers.draft)
    return 1 + max((int(name.partition(":")[2] or 0) for name in named if name and name.startswith("cuda")), default=0)


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _ray_gpu_count(address: str | None) -> int:
    return int(connect_ray(address).cluster_resources().get("GPU", 0))
