"""Clips that are files: those of folders, and those that lists name by their paths."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache

from wcmatch import glob

from vidspec.errors import UsageError
from vidspec.files import is_lfs_pointer, read_text
from vidspec.runs.access import is_url
from vidspec.runs.job import Job
from vidspec.runs.sources.base import EXTENSIONS, ListOptions, Source, is_shard, sources
from vidspec.runs.sources.manifests import MAX_LIST_BYTES, list_name
from vidspec.runs.stores import join_url
from vidspec.video.image import IMAGES

__all__ = ["FileSource", "list_paths", "matches_any", "mirror_root"]

#: Suffixes of videos that TypeScript's files share, and the bytes that tell them apart.
_SCRIPTS, _SCRIPT_HEAD = (".ts", ".mts"), 4096


@sources.register("files")
class FileSource(Source):
    """The videos in and below a folder, sorted by path, without hidden ones and without following links to folders."""

    def list(self, file: Job, options: ListOptions) -> Iterator[Job]:
        folder, paths = file.path, list[str]()

        def failed(error: OSError) -> None:
            options.unreadable.append(f"{error.filename}: cannot be listed: {error.strerror}")

        def is_searched(path: str) -> bool:
            return not matches_any(_posix(path, folder), options.exclude)

        for here, folders, names in os.walk(folder, onerror=failed):
            folders[:] = [name for name in folders if name[0] != "." and is_searched(os.path.join(here, name))]
            paths += [os.path.join(here, name) for name in names if name[0] != "."]
        for path in sorted(paths):
            if _is_clip(path, _posix(path, folder), options):
                yield Job(path, root=folder)


def list_paths(name: str, options: ListOptions) -> Iterator[Job]:
    """Yield the clips and shards that a list names, separated by NUL if there is any, else by newlines.

    Raises:
        UsageError: the list cannot be read.
    """
    text = read_text(name, MAX_LIST_BYTES, list_name(name), pipe=True, errors="surrogateescape")
    for path in text.split("\0") if "\0" in text else (line.rstrip("\r") for line in text.split("\n")):
        if path.strip() and (is_shard(path) or _is_clip(path, path, options)):
            try:
                path = join_url("", path)
            except ValueError as error:
                raise UsageError(f"{list_name(name)}: {error}") from None
            yield Job(path, root=mirror_root(path))


def mirror_root(path: str) -> str:
    """Return ``.`` for a relative path below the working folder, else the folder of the file."""
    if is_url(path):
        return path.rpartition("/")[0]
    relative = os.path.normpath(path)
    if os.path.isabs(relative) or relative.startswith(os.pardir):
        return os.path.dirname(path) or "."
    return "."


def _posix(path: str, folder: str) -> str:
    return os.path.relpath(path, folder).replace(os.sep, "/")


def _is_clip(path: str, relative: str, options: ListOptions) -> bool:
    """Return True if a path of a folder or list is a clip; count it as skipped if not."""
    suffix = os.path.splitext(path)[1].lower()
    is_video = suffix[1:] in EXTENSIONS or (options.images and suffix[1:] in IMAGES)
    if not is_video or (suffix in _SCRIPTS and os.path.isfile(path) and _is_script(path)):
        options.left_out["not video"] += 1
        return False
    relative = relative.replace(os.sep, "/").lstrip("/")
    if matches_any(relative, options.exclude) or (options.include and not matches_any(relative, options.include)):
        options.left_out["excluded"] += 1
        return False
    return True


def _is_script(path: str) -> bool:
    """Return True if a file begins as UTF-8 text: TypeScript, not an MPEG transport stream."""
    try:
        with open(path, "rb") as file:
            head = file.read(_SCRIPT_HEAD)
        codecs.getincrementaldecoder("utf-8")().decode(head)
        return bool(head) and b"\0" not in head and not is_lfs_pointer(path)
    except (OSError, ValueError):  # reading the clip tells what is wrong
        return False


def matches_any(relative: str, patterns: Iterable[str]) -> bool:
    """Return True if ``relative``, a path with ``/``, matches one of ``patterns``.

    A pattern without ``/`` is compared with every part of the path, so ``tmp`` matches a folder of that name and
    everything in it; one with ``/`` is compared with the whole path and its leading folders. ``*`` and ``?`` stay
    within a part, ``**`` is any number of parts, ``[ab]`` is one of these characters.
    """
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    leading = ["/".join(parts[: length + 1]) for length in range(len(parts))]
    return any(
        _compile_pattern(pattern).fullmatch(one)
        for pattern in (pattern.removeprefix("./").rstrip("/") for pattern in patterns)
        for one in (leading if "/" in pattern else parts)
    )


@cache
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    (regex,), _ = glob.translate(pattern, flags=glob.GLOBSTAR | glob.DOTGLOB | glob.CASE)
    return re.compile(regex)
