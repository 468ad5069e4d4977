"""Split a run over machines: ``--shard I/N``, or the tasks of a SLURM job array, also when some of them run again."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vidspec.errors import OutputError, UsageError, option
from vidspec.runs.job import Job

if TYPE_CHECKING:
    from vidspec.config.run_spec import RunSpec

__all__ = ["JobArray", "Shard", "array_shard", "array_task", "parse_shard", "save_array", "shard_of"]


@dataclass(frozen=True)
class Shard:
    """Part ``number`` (from 1) of ``count`` of a run; ``array`` is the job array that set it, None for the user."""

    number: int
    count: int
    array: JobArray | None = None

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
        return plain.with_name(f"{plain.stem}{self.label}{plain.suffix}") if self.array else plain

    def select(self, jobs: Sequence[Job], *, searched: bool) -> list[Job]:
        """Return the jobs of this shard. Rows of a manifest that share a file are dealt like files.

        Jobs are dealt in turn, in the order of their names. If they were ``searched`` for, a file that appears between
        the starts of two tasks must not move others: a hash of the name below the named folder decides.
        """
        names = [_identity(job, job.relative if searched else job.path) for job in jobs]
        if searched:
            numbers = [_hash(name + part) % self.count for name, part in names]
        else:
            places = {name: place % self.count for place, name in enumerate(sorted({*names}))}
            numbers = [places[name] for name in names]
        return [job for job, number in zip(jobs, numbers, strict=True) if number == self.number - 1]


class JobArray(NamedTuple):
    """A SLURM job array of ``tasks`` tasks, whose ids begin at ``first`` and are ``step`` apart."""

    first: int
    step: int
    tasks: int

    def __str__(self) -> str:
        last = self.first + self.step * (self.tasks - 1)
        return f"{self.first}-{last}{f':{self.step}' if self.step > 1 else ''}"

    def shard(self, task: int) -> Shard | None:
        """Return the shard of a task; None if it is not one of the array."""
        place, rest = divmod(task - self.first, self.step)
        return None if rest or not 0 <= place < self.tasks else Shard(place + 1, self.tasks, self)

    def to_json(self) -> str:
        """Return a line that :meth:`from_json` reads."""
        return json.dumps(self) + "\n"

    @classmethod
    def from_json(cls, content: bytes) -> JobArray | None:
        """Read the line of :meth:`to_json`; return None for anything else."""
        with suppress(ValueError, TypeError):
            first, step, count = map(int, json.loads(content))
            return cls(first, max(1, step), count)
        return None


def parse_shard(text: str) -> Shard:
    """Return the shard of ``--shard I/N``.

    Raises:
        UsageError: it is not I/N with I from 1 to N.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"{option('shard', text)}: must be I/N with I from 1 to N, such as 1/8")
    return Shard(int(match[1]), int(match[2]))


def array_task(env: Mapping[str, str]) -> tuple[int, JobArray] | None:
    """Return the id of this process's task in a SLURM job array, and the array; None outside one."""
    try:
        task, count = int(env["SLURM_ARRAY_TASK_ID"]), int(env["SLURM_ARRAY_TASK_COUNT"])
        first, step = int(env.get("SLURM_ARRAY_TASK_MIN", 0)), int(env.get("SLURM_ARRAY_TASK_STEP", 1))
    except (KeyError, ValueError):
        return None
    return task, JobArray(first, max(1, step), count)


def array_shard(task: int, array: JobArray, begun: JobArray | None) -> Shard | None:
    """Return the shard of a task; None for an array of one task.

    SLURM tells a task that runs again (``sbatch --array=3``) only of the array it is in now, so the array that began
    the output decides: the same task does the same part.

    Args:
        task: id of the task.
        array: array of the task.
        begun: array that began the output; None if there is none.

    Raises:
        UsageError: the task is not one of the array.
    """
    shard = (begun or array).shard(task)
    if shard is None and begun is not None:
        message = f"the job array {begun} began this output, and task {task} is not one of its tasks"
        raise UsageError(
            message,
            hint=f"name another output, give {option('shard', 'I/N')}, or start over with {option('overwrite')}",
        )
    if shard is None:
        message = f"SLURM_ARRAY_TASK_ID {task} is not one of {array.tasks} tasks in regular steps"
        raise UsageError(message, hint=f"give {option('shard', 'I/N')}")
    return shard if shard.count > 1 else None


def shard_of(spec: RunSpec, *, beside: bool) -> Shard | None:
    """Return the shard of this process; None for all clips. Its files may stand ``beside`` the clips.

    Raises:
        UsageError: ``--shard`` is not I/N, or the output was begun by another number of tasks than this one belongs to.
    """
    if spec.shard is not None:
        return parse_shard(spec.shard)
    if (task := array_task(os.environ)) is None:
        return None
    file = _array_file(spec, beside=beside)
    begun = None if file is None or spec.overwrite else _load(file)
    if file is not None and begun is None and not spec.overwrite:
        _check_count(spec, Path(file).parent, task[1].tasks)
    return array_shard(*task, begun)


def save_array(spec: RunSpec, array: JobArray, *, beside: bool) -> None:
    """Keep the job array next to the output, so that a task that runs again finds its part.

    Raises:
        OutputError: the file cannot be written.
    """
    from vidspec.runs.renderers import make_folder
    from vidspec.runs.stores import is_url, write_url

    file = _array_file(spec, beside=beside)
    if file is None or _load(file) == array:
        return
    if not is_url(file):
        make_folder(Path(file).parent)
    try:
        write_url(file, array.to_json().encode())
    except OutputError:
        if _load(file) != array:  # another task of the array wrote it meanwhile
            raise


def _load(file: str) -> JobArray | None:
    """Return the array that began an output; None if there is none.

    Raises:
        VideoError: it cannot be read.
    """
    from vidspec.runs.stores import is_url, list_names, open_url, retry

    def read() -> bytes:
        with open_url(file) as content:
            return content.read(1 << 10)

    folder, _, name = file.rpartition("/")
    if not (name in list_names(folder) if is_url(file) else os.path.isfile(file)):
        return None
    return JobArray.from_json(retry(file, read))


def _array_file(spec: RunSpec, *, beside: bool) -> str | None:
    """Return the path or URL of the file that keeps the array that began an output; None if the output has no place."""
    from vidspec.runs.stores import is_url, join_url

    if spec.output is not None:
        path = Path(spec.output)
        special = spec.output == "-" or is_url(spec.output) or (path.exists() and not path.is_file())
        return None if special else str(path.with_name(f".{path.name}.array"))
    if spec.output_dir is None and not beside:
        return None
    first = next(iter((*spec.paths, *spec.from_file, *spec.manifest)), "")
    folder = spec.output_dir or (first if os.path.isdir(first) else os.path.dirname(first) or ".")
    return None if is_url(folder) and spec.output_dir is None else join_url(folder, ".vidspec.array")


def _check_count(spec: RunSpec, folder: Path, count: int) -> None:
    """Refuse an output folder with parts of another number of tasks."""
    stem = re.escape(Path(spec.output).stem) if spec.output else r"captions|\.vidspec"
    part = re.compile(rf"(?:{stem})\.\d+-of-(\d+)\.[^.]+")
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    for name in names:
        if (match := part.fullmatch(name)) and int(match[1]) != count:
            message = f"{folder / name}: is a part of {match[1]}, and this job array has {count} tasks"
            hint = f"give {option('shard', 'I/' + match[1])} to do one of those parts again, or name another output"
            raise UsageError(message, hint=hint)


def _identity(job: Job, path: str) -> tuple[str, str]:
    """Return the name of a job, and the time range and id that its row names; no text for a whole file."""
    named = (job.start, job.end, job.id)
    return os.path.normpath(path), "" if named == (None, None, None) else json.dumps(named)


def _hash(name: str) -> int:
    digest = hashlib.sha256(name.replace(os.sep, "/").encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big")
