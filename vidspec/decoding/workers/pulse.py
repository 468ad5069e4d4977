"""Tells a process that works from one that is stopped or waits for ever, by what the system says of it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["Pulse"]


class Pulse:
    """A process's signs of life between one look and the next.

    Args:
        pid: of the process.
    """

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._used = 0

    def beats(self) -> bool:
        """Whether it runs, waits for a disk, or has used the processor since the last look.

        Where the system has no ``/proc`` it is always taken to.
        """
        try:
            # Behind the name, which may hold anything: the state, and as 12th and 13th ticks of user and system time.
            fields = self._stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            return not Path("/proc/self/stat").exists()
        used, before = int(fields[11]) + int(fields[12]), self._used
        self._used = used
        return fields[0] in "RD" or used > before
