"""The contract of sources of clips, their registry, and clips of any source as local files, one at a time."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import ClassVar

from vidspec.errors import VideoError, VidspecError
from vidspec.files import LFS_HINT, is_lfs_pointer, open_own
from vidspec.registry import Registry
from vidspec.runs.access import Access, is_url
from vidspec.runs.allowance import FetchLimits
from vidspec.runs.job import Job
from vidspec.runs.stores import retry
from vidspec.video.image import IMAGES

__all__ = [
    "EXTENSIONS",
    "ClipOpener",
    "ListOptions",
    "Source",
    "clip_suffix",
    "is_shard",
    "shard_members",
    "source_of",
    "sources",
]

#: Suffixes of videos in folders, lists and shards; files named individually are always tried.
EXTENSIONS = frozenset(
    "3g2 3gp asf avi divx dv f4v flv gif m1v m2t m2ts m2v m4v mj2 mjpeg mjpg mkv mov mp4 mpe mpeg "  # noqa: SIM905
    "mpg mts mxf nut ogm ogv qt rm rmvb ts vob webm wmv y4m".split()
)
#: Signatures of pictures; all other bytes are taken for a video.
_PICTURE = re.compile(rb"\xff\xd8\xff|\x89PNG|RIFF....WEBP|II\*\0|MM\0\*", re.DOTALL)


@dataclass(frozen=True)
class ListOptions:
    """Options by which a source lists its clips, and counts of those left out.

    Attributes:
        include, exclude: globs over the paths in folders and lists; see :func:`vidspec.runs.sources.files.matches_any`.
        images: take image files in folders and lists too.
        column: column of clips in a table, or field of a column of structs (``video.path``); None to detect it.
        fields: names in braces in the run's prompts and template.
        left_out: number of files left out, by reason.
        unreadable: one line for each folder that cannot be listed.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    images: bool = False
    column: str | None = None
    fields: Collection[str] = ()
    left_out: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)


class Source:
    """Clips of one kind of input: listed without being read, and opened one at a time.

    A reader of a run makes one of each kind for all its clips, and calls it from several threads.

    Attributes:
        suffixes: suffixes of the files that it lists, in lower case with the dot.
        is_shard: True if the clips are in the file, which is listed when its first clip is due; False for names of
            files, all of which are known before the run.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()
    is_shard: ClassVar[bool] = True

    def __init__(self, limits: FetchLimits | None = None) -> None:
        self.limits = limits or FetchLimits()

    def __init_subclass__(cls) -> None:
        for suffix in cls.suffixes:
            other = _BY_SUFFIX.setdefault(suffix, cls)
            if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ValueError(f"{suffix} files are listed by {other.__module__}.{other.__qualname__}")
            _BY_SUFFIX[suffix] = cls

    def list(self, file: Job, options: ListOptions) -> Iterable[Job]:
        """Yield the clips of a file with all their columns; nothing if other sources name this one's clips.

        Those of a shard are made by ``file.member``, with a ``source`` whose ``kind`` is this source's name, or with
        the ``error`` of a clip that cannot be read.

        Raises:
            VideoError: the file cannot be read; clips that were yielded before are captioned.
            UsageError: an option is wrong.
        """
        return ()

    def open(self, job: Job, folder: str) -> bytes | str:
        """Return the bytes of a clip, or a path.

        Args:
            job: the clip, without frames.
            folder: a temporary folder, deleted once the clip is read.

        Raises:
            VideoError: it cannot be read.
        """
        return job.path

    def close(self) -> None:
        """Close what is open."""

    def access(self, job: Job) -> Access:
        """Return what data of the clip's shard may name."""
        return self.limits.access.with_typed(job.shard or "")


#: Sources by the suffixes of their files.
_BY_SUFFIX: dict[str, type[Source]] = {}
sources: Registry[Source] = Registry(Source, "sources", "vidspec.runs.sources", "source", "source")


@cache
def _import_sources() -> None:
    for name in sources.names():
        sources.get(name)


def source_of(path: str) -> type[Source] | None:
    """Return the source that lists a file, by its suffix; None for a file that is a clip itself."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix[1:] in EXTENSIONS:
        return None
    _import_sources()
    return _BY_SUFFIX.get(suffix)


def is_shard(path: str) -> bool:
    """Return True if a path or URL names a file with many clips in it."""
    source = source_of(path)
    return source is not None and source.is_shard


def clip_suffix(path: str) -> str:
    """Return the suffix of a video or picture in lower case; empty for any other text."""
    suffix = posixpath.splitext(path)[1].lower()
    return suffix if suffix[1:] in EXTENSIONS or suffix[1:] in IMAGES else ""


def shard_members(
    shard: Job, column: str | None = None, limits: FetchLimits | None = None, fields: Collection[str] = ()
) -> list[Job]:
    """Return the clips in a shard as jobs, in the order of the shard and with its settings.

    An invalid clip becomes a job with an error. If the shard cannot be read to its end, the last job is the shard
    itself with the error.

    Args:
        shard: path or URL of a file of a source.
        column, fields: of :class:`ListOptions`.
        limits: read limits and access rules; None for the defaults.

    Raises:
        VideoError: the shard cannot be read, is of another type, or has no clips.
        UsageError: the column is missing or ambiguous, or a package is missing.
    """
    limits = limits or FetchLimits()
    limits = limits._replace(access=limits.access.with_typed(shard.path))
    kind, members = source_of(shard.path), list[Job]()
    if kind is None:
        raise VideoError(f"{shard.path}: is not a file of clips", kind="not_video")
    source = kind(limits)

    def read() -> None:
        members.clear()
        if not is_url(shard.path) and os.path.isfile(shard.path) and is_lfs_pointer(shard.path):
            message = f"{shard.path}: is a pointer of Git LFS, not the file itself"
            raise VideoError(message, kind="not_video", hint=LFS_HINT)
        members.extend(source.list(shard, ListOptions(column=column, fields=fields)))

    try:
        retry(shard.path, read)
    except VideoError as error:
        if not members:
            raise
        return [*members, shard.member(shard.path, None, error)]
    if not members:
        raise VideoError(
            f"{shard.path}: holds no clip", kind="no_frames", hint="name a tar of .mp4, .webm, .jpg and such"
        )
    return members


class ClipOpener:
    """Provides clips of any source as local files. Thread-safe.

    Args:
        limits: fetch limits; None for the defaults.
    """

    def __init__(self, limits: FetchLimits | None = None) -> None:
        self._limits = limits or FetchLimits()
        self._lock = Lock()
        self._sources: dict[str, Source] = {}

    @contextmanager
    def local(self, job: Job) -> Iterator[str]:
        """Provide the clip as a local file within the context; errors that name the file are made to name the clip.

        Raises:
            VideoError: the clip cannot be fetched.
        """
        if job.source is None:
            yield job.path
            return
        with TemporaryDirectory(prefix="vidspec-", ignore_cleanup_errors=True) as folder:
            file = ""
            try:
                opened = self._source(job.source.kind).open(job, folder)
                file = opened if isinstance(opened, str) else _write_clip(folder, opened)
                yield file
            except VidspecError as error:
                temporary = file.startswith(folder)
                message = error.message.replace(file, job.path) if temporary else error.message
                message = message if job.path in message else f"{job.path}: {message}"
                raise type(error)(message, hint=error.hint, kind=error.kind, stage=error.stage) from error.__cause__

    def close(self) -> None:
        """Close what the sources have open."""
        with self._lock:
            for source in self._sources.values():
                source.close()

    def _source(self, kind: str) -> Source:
        with self._lock:
            if kind not in self._sources:
                self._sources[kind] = sources.get(kind)(self._limits)
            return self._sources[kind]


def _write_clip(folder: str, content: bytes) -> str:
    path = Path(folder, "clip.png" if _PICTURE.match(content) else "clip.mp4")
    with open_own(path, "xb") as file:
        file.write(content)
    return str(path)
