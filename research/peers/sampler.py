"""Memory of a process and its children over time."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

from research.process_memory import resident


def process_tree(pid: int) -> list[int]:
    """Return a process and its running descendants; itself alone without /proc.

    A child that has not started its own program yet is left out: its memory is its parent's.
    """
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            # The program's name is in brackets and may contain anything; the parent is the second field after it.
            parent = int((folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for one in found:
        found += [child for child in children.get(one, ()) if _program(child) != _program(one)]
    return found


def _program(pid: int) -> bytes:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


class MemorySampler:
    """Samples the resident memory of a process and its children while entered.

    Shared memory, such as the code of libraries, counts in each process.

    Attributes:
        samples: seconds since entry, and bytes.
    """

    def __init__(self, pid: int, every: float = 0.02) -> None:
        self.pid, self.every = pid, every
        self.samples: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)

    def __enter__(self) -> MemorySampler:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def peak(self) -> int | None:
        """Peak in bytes; None if it cannot be read."""
        return max((size for _, size in self.samples), default=None)

    def _sample(self) -> None:
        while True:
            sizes = [one for one in map(resident, process_tree(self.pid)) if one is not None]
            if sizes:
                self.samples.append((time.monotonic() - self._began, sum(sizes)))
            if self._stop.wait(self.every):
                return
