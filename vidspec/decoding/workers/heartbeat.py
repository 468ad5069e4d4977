"""Distinguishes a working process from one that is stopped or waits for ever, by its state in ``/proc``."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["PATIENCE", "Heartbeat"]

#: Seconds for which signs of life count instead of an answer. The prompt of a long video, or weights that lie on a
#: disk, take minutes.
PATIENCE = 1800.0


class Heartbeat:
    """A process's signs of life.

    Args:
        pid: of the process.
    """

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._used = 0
        self._seen = time.monotonic()

    def silent(self) -> float:
        """Seconds in which it was neither running, nor waiting for a disk, nor using the processor between two calls;
        any number of clips may call it.

        Without ``/proc`` it always counts as working.
        """
        now = time.monotonic()
        try:
            # Behind the name, which may hold anything: the state, and as 12th and 13th ticks of user and system time.
            fields = self._stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            return now - self._seen if Path("/proc/self/stat").exists() else 0.0
        used, before = int(fields[11]) + int(fields[12]), self._used
        self._used = used
        if fields[0] in "RD" or used > before:
            self._seen = now
        return now - self._seen
