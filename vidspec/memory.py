"""How much main memory programs can still get, on this machine or in this container. Allocates nothing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["available"]

_CGROUP = Path("/sys/fs/cgroup")


def available() -> int | None:
    """Bytes of main memory that programs can still get without swapping; None where the system does not say.

    Linux does; there a container's own limit counts too.
    """
    found = [free for free in (_machine(), _container()) if free is not None]
    return min(found, default=None)


def _machine() -> int | None:
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _container() -> int | None:
    with suppress(OSError, ValueError):  # "max" is no limit
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        counts = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        return max(0, limit - used + int(counts.get("inactive_file", 0)))  # pages of files give way
    return None
