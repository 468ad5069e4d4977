"""Heartbeat of a process from its state in ``/proc``: tells a working process from a stopped or deadlocked one."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["PATIENCE", "Heartbeat"]

#: Seconds for which signs of life count instead of an answer. Prefill of a long video, or loading weights from a disk,
#: takes minutes.
PATIENCE = 1800.0


class Heartbeat:
    """Signs of life of a process.

    Args:
        pid: id of the process.
    """

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._ticks = 0
        self._last_active = time.monotonic()

    def silent_s(self) -> float:
        """Return the seconds without activity; any number of clips may call it.

        Activity is a running process, a wait for a disk, or processor time used between two calls. Without ``/proc`` it
        always counts as working.
        """
        now = time.monotonic()
        try:
            # Fields after the name, which may hold anything: state; 12th and 13th, ticks of user and system time.
            fields = self._stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            return now - self._last_active if Path("/proc/self/stat").exists() else 0.0
        used, before = int(fields[11]) + int(fields[12]), self._ticks
        self._ticks = used
        if fields[0] in "RD" or used > before:
            self._last_active = now
        return now - self._last_active
