"""Main memory of this process: bytes in use, bytes available, and a limit. Allocates nothing."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Return the bytes of main memory that this process can still get without swapping; None if unknown.

    Known on Linux, where the limits of the container and of the process count too.
    """
    limits = [free for free in (_machine_memory(), _container_memory(), _process_memory()) if free is not None]
    return min(limits, default=None)


def release_memory() -> None:
    """Return free memory of this process to the system, which glibc does not do; no effect elsewhere."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_memory() -> int | None:
    """Return the bytes of main memory that this process occupies; None if the system is not Linux."""
    with suppress(OSError, ValueError):
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return None


def limit_memory(more: int) -> None:
    """Limit this process to ``more`` further bytes of its own; no effect on systems without such a limit."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = _data_bytes() + more
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _data_bytes() -> int:
    """Return the bytes of data of this process, as Linux counts them for the limit."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmData:")).split()[1]) * 1024


def _process_memory() -> int | None:
    with suppress(ImportError, OSError, ValueError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_DATA)[0]
        return None if most == resource.RLIM_INFINITY else max(0, most - _data_bytes())
    return None


def _machine_memory() -> int | None:
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _container_memory() -> int | None:
    with suppress(OSError, ValueError):  # "max" is no limit
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        counts = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        return max(0, limit - used + int(counts.get("inactive_file", 0)))  # file pages are reclaimable
    return None
