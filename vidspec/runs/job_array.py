"""The part of a run that this process does: ``--shard``, or its task of a SLURM job array."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from vidspec.errors import OutputError, UsageError

if TYPE_CHECKING:
    from vidspec.config.run_spec import RunSpec
    from vidspec.runs.inputs import InputSources
    from vidspec.runs.shards import JobArray, Shard

__all__ = ["save_array", "shard_of"]


def shard_of(spec: RunSpec, sources: InputSources) -> Shard | None:
    """Return the shard of this process; None for all clips.

    Raises:
        UsageError: ``--shard`` is not I/N, or the output was begun by another number of tasks than this one belongs to.
    """
    from vidspec.runs.shards import array_shard, array_task, parse_shard

    if spec.shard is not None or (task := array_task(os.environ)) is None:
        return parse_shard(spec.shard)
    file = _array_file(spec, sources)
    begun = None if file is None or spec.overwrite else _load(file)
    if file is not None and begun is None and not spec.overwrite:
        _check_count(spec, Path(file).parent, task[1].tasks)
    return array_shard(*task, begun)


def save_array(spec: RunSpec, sources: InputSources, shard: Shard | None) -> None:
    """Keep the job array next to the output, so that a task that runs again finds its part.

    Raises:
        OutputError: the file cannot be written.
    """
    from vidspec.runs.outputs import make_folder
    from vidspec.runs.stores import is_url, write_url

    file = _array_file(spec, sources)
    if file is None or shard is None or shard.array is None or _load(file) == shard.array:
        return
    if not is_url(file):
        make_folder(Path(file).parent)
    try:
        write_url(file, shard.array.to_json().encode())
    except OutputError:
        if _load(file) != shard.array:  # another task of the array wrote it meanwhile
            raise


def _load(file: str) -> JobArray | None:
    """Return the array that began an output; None if there is none.

    Raises:
        VideoError: it cannot be read.
    """
    from vidspec.runs.shards import JobArray
    from vidspec.runs.stores import is_url, list_names, open_url, retry

    def read() -> bytes:
        with open_url(file) as content:
            return content.read(1 << 10)

    folder, _, name = file.rpartition("/")
    if not (name in list_names(folder) if is_url(file) else os.path.isfile(file)):
        return None
    return JobArray.from_json(retry(file, read))


def _array_file(spec: RunSpec, sources: InputSources) -> str | None:
    """Return the path or URL of the file that keeps the array that began an output; None if the output has no place."""
    from vidspec.runs.stores import is_url, join_url

    if spec.output is not None:
        path = Path(spec.output)
        special = spec.output == "-" or is_url(spec.output) or (path.exists() and not path.is_file())
        return None if special else str(path.with_name(f".{path.name}.array"))
    if spec.output_dir is None and not sources.links:
        return None
    first = next(iter((*sources.paths, *sources.lists, *sources.manifests)))
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
            hint = f"give --shard I/{match[1]} to do one of those parts again, or name another output"
            raise UsageError(message, hint=hint)
