"""Split a run over machines by a hash of each clip's path, so that no other clip changes the assignment."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vidspec.dataset.job import Job
from vidspec.errors import UsageError

__all__ = ["Shard", "parse_shard"]


@dataclass(frozen=True)
class Shard:
    """Part ``number`` (from 1) of ``count`` of a run; ``automatic`` if set by a job array instead of the user."""

    number: int
    count: int
    automatic: bool = False

    @property
    def label(self) -> str:
        """Label in file names; empty for a single shard."""
        return f".{self.number}-of-{self.count}" if self.count > 1 else ""

    def fill_name(self, path: str) -> Path:
        """Return ``path`` with ``{shard}`` filled in.

        In a job array, whose tasks share one command line, a path without ``{shard}`` gets the label before its suffix.
        """
        if "{shard}" in path:
            return Path(path.replace("{shard}", self.label.lstrip(".") or "1-of-1"))
        plain = Path(path)
        return plain.with_name(f"{plain.stem}{self.label}{plain.suffix}") if self.automatic else plain

    def select(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the jobs of this shard. All parts of one file are in the same shard."""
        return [job for job in jobs if _shard_number(job, self.count) == self.number]


def parse_shard(text: str | None, env: Mapping[str, str]) -> Shard | None:
    """Return the shard of ``--shard I/N``, else that of a SLURM job array, else None.

    Raises:
        UsageError: it is not I/N with I from 1 to N.
    """
    if text is not None:
        match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"--shard {text}: must be I/N with I from 1 to N, such as 1/8")
        return Shard(int(match[1]), int(match[2]))
    try:
        task, count = int(env["SLURM_ARRAY_TASK_ID"]), int(env["SLURM_ARRAY_TASK_COUNT"])
        first, step = int(env.get("SLURM_ARRAY_TASK_MIN", 0)), int(env.get("SLURM_ARRAY_TASK_STEP", 1))
    except (KeyError, ValueError):
        return None
    number = (task - first) // max(1, step) + 1
    if not 1 <= number <= count:
        raise UsageError(
            f"SLURM_ARRAY_TASK_ID {task} is not one of {count} tasks in regular steps", hint="give --shard I/N"
        )
    return Shard(number, count, automatic=True) if count > 1 else None


def _shard_number(job: Job, count: int) -> int:
    """Return a job's shard, 1 to ``count``, by its path below the named folder, which may be mounted anywhere."""
    path = os.path.normpath(job.relative).replace(os.sep, "/")
    digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") % count + 1
