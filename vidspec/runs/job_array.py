"""The part of a run that this process does: ``--shard``, or its task of a SLURM job array."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from vidspec.errors import UsageError

if TYPE_CHECKING:
    from vidspec.config.run_spec import RunSpec
    from vidspec.runs.inputs import InputSources
    from vidspec.runs.shards import Shard

__all__ = ["save_array", "shard_of"]


def shard_of(spec: RunSpec, sources: InputSources) -> Shard | None:
    """Return the shard of this process; None for all clips.

    Raises:
        UsageError: ``--shard`` is not I/N, or the output was begun by another number of tasks than this one belongs to.
    """
    from vidspec.runs.shards import JobArray, array_shard, array_task, parse_shard

    if spec.shard is not None or (task := array_task(os.environ)) is None:
        return parse_shard(spec.shard)
    file = _array_file(spec, sources)
    begun = None if file is None or spec.overwrite else JobArray.load(file)
    if file is not None and begun is None and not spec.overwrite:
        _check_count(spec, file.parent, task[1].tasks)
    return array_shard(*task, begun)


def save_array(spec: RunSpec, sources: InputSources, shard: Shard | None) -> None:
    """Keep the job array next to the output, so that a task that runs again finds its part.

    Raises:
        OutputError: the file cannot be written.
    """
    from vidspec.runs.renderers import make_folder
    from vidspec.runs.shards import JobArray

    file = _array_file(spec, sources)
    if file is None or shard is None or shard.array is None or JobArray.load(file) == shard.array:
        return
    make_folder(file.parent)
    shard.array.save(file)


def _array_file(spec: RunSpec, sources: InputSources) -> Path | None:
    """Return the file that keeps the array that began an output; None if the output is no local file."""
    from vidspec.runs.stores import is_url

    if spec.output is not None:
        path = Path(spec.output)
        special = spec.output == "-" or is_url(spec.output) or (path.exists() and not path.is_file())
        return None if special else path.with_name(f".{path.name}.array")
    if spec.output_dir is None and not sources.links:
        return None
    first = next(iter((*sources.paths, *sources.lists, *sources.manifests)))
    folder = spec.output_dir or (first if os.path.isdir(first) else os.path.dirname(first) or ".")
    return None if is_url(folder) else Path(folder, ".vidspec.array")


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
