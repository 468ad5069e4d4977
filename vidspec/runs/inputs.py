"""Collect the clips of a run: files, folders, lists and manifests become unique jobs. Opens no clip."""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import bracex
from wcmatch import glob

from vidspec.errors import UsageError
from vidspec.files import is_lfs_pointer, read_text
from vidspec.runs.job import Job
from vidspec.runs.manifests import SUFFIXES, parse_manifest
from vidspec.runs.stores import is_url, match_urls

__all__ = [
    "EXTENSIONS",
    "InputListing",
    "InputSources",
    "collect_inputs",
    "drop_missing",
    "expand_shards",
    "is_shard",
    "matches_any",
    "require_file",
]

#: Maximum bytes of a list or a manifest: some ten million clips.
MAX_LIST_BYTES = 1 << 30
#: Suffixes of videos in folders and lists; files named individually are always tried.
EXTENSIONS = frozenset(
    "3g2 3gp asf avi divx dv f4v flv gif m1v m2t m2ts m2v m4v mj2 mjpeg mjpg mkv mov mp4 mpe mpeg "  # noqa: SIM905
    "mpg mts mxf nut ogm ogv qt rm rmvb ts vob webm wmv y4m".split()
)
#: Suffixes of videos that TypeScript's files share, and the bytes that tell them apart.
_SCRIPTS, _SCRIPT_HEAD = (".ts", ".mts"), 4096
#: Suffixes of files with many clips.
SHARDS = (".tar", ".parquet")
#: Maximum names that the braces in one name stand for.
MAX_NAMES = 1_000_000


def expand_shards(name: str) -> list[str]:
    """Expand the braces in a shard name, ``{00..09}`` or ``{a,b}``, and ``*`` in a shard's URL.

    Any other name is returned as it is: ``*`` in a path is expanded by the shell.

    Raises:
        UsageError: no file matches, the server cannot list files, or the braces stand for too many names.
        VideoError: a store cannot be listed.
    """
    if not is_shard(name) or os.path.lexists(name):
        return [name]
    try:
        names = bracex.expand(name, limit=MAX_NAMES)
    except bracex.ExpansionLimitException:
        message = f"{name}: its braces stand for more than {MAX_NAMES:,} names"
        raise UsageError(message, hint="name them in several commands") from None
    return [found for one in names for found in (match_urls(one) if is_url(one) and "*" in one else (one,))]


def is_shard(path: str) -> bool:
    """Return True if a path or URL names a file with many clips."""
    return path.lower().endswith(SHARDS)


@dataclass(frozen=True)
class InputSources:
    """Inputs that clips are collected from.

    Attributes:
        paths: files, folders, manifests and shards (by their suffix), and ``-`` for a list on standard input. Braces
            of shards, and ``*`` in their URLs, are expanded.
        lists: files that list paths, separated by NUL if there is any, else by newlines; ``-`` for standard input.
        manifests: JSONL or CSV files; ``-`` for standard input.
        include, exclude: globs over the paths in folders and lists; see :func:`matches_any`.
        images: take image files in folders and lists too.
        links: links to a clip are clips of their own, because each name gets a file.
    """

    paths: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    manifests: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    images: bool = False
    links: bool = False


@dataclass
class InputListing:
    """Collected jobs in order, and counts of skipped inputs.

    ``several`` is True for a list, a folder or more than one file; output then names each clip. ``searched`` is True if
    some jobs were found in a folder or a store, where others may appear later.
    """

    entries: list[Job] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    not_video: int = 0
    excluded: int = 0
    unreadable: list[str] = field(default_factory=list)
    several: bool = False
    searched: bool = False

    @property
    def left_out(self) -> str:
        """Counts of inputs left out by reason; empty if none."""
        duplicates = len(self.duplicates)
        more = duplicates > 1
        named = f"duplicate{'s' * more} ({self.duplicates[0]}{', ...' * more})" if duplicates else ""
        counts = {named: duplicates, "not video": self.not_video, "excluded": self.excluded}
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def collect_inputs(sources: InputSources) -> InputListing:
    """Collect all clips that ``sources`` name, those of folders sorted by path.

    The same file (links followed, unless ``sources.links``) with the same part, prompt and id counts once; later ones
    are duplicates.

    Raises:
        UsageError: a list, manifest or URL cannot be read, or standard input is named twice.
    """
    listing = InputListing()
    stdin = [name for name in (*sources.paths, *sources.lists, *sources.manifests) if name == "-"]
    if len(stdin) > 1:
        raise UsageError("standard input can be read once only", hint="name - once")
    seen: set[tuple[object, ...]] = set()
    for job in _jobs(sources, listing):
        key = (
            _file_key(job.path, links=sources.links),
            *(job.start, job.end, job.prompt, job.questions, type(job.id), job.id),
        )
        if key in seen:
            listing.duplicates.append(job.path)
        else:
            seen.add(key)
            listing.entries.append(job)
    listing.several |= len(sources.paths) > 1 or bool(sources.lists or sources.manifests)
    return listing


def _file_key(path: str, *, links: bool) -> str:
    """Return the key of a file: its own place if ``links`` are files of their own or lead nowhere, else its target."""
    if os.path.exists(path) and not links:
        return os.path.realpath(path)
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def require_file(path: str) -> None:
    """Refuse a path that the user gave directly and that does not exist.

    Raises:
        UsageError: it does not.
    """
    if not os.path.lexists(path):
        fetched = "only .tar and .parquet files are read from URLs; download it first"
        raise UsageError(f"{path}: there is no such file", hint=fetched if is_url(path) else "check the path")


def drop_missing(listing: InputListing, named: Sequence[str]) -> None:
    """Move missing clips of lists and manifests, and shards that are special files, to ``listing.unreadable``.

    Shards behind URLs are checked when they are opened.

    Raises:
        UsageError: one of ``named``, given by the user directly, does not exist.
    """
    local = [job for job in listing.entries if not (is_url(job.path) and is_shard(job.path))]
    missing = [job for job in local if not os.path.lexists(job.path)]
    for job in missing:
        if job.path in named:
            require_file(job.path)
        listing.unreadable.append(f"{job.path}: there is no such file")
    special = [job for job in local if is_shard(job.path) and _is_special(job.path)]
    listing.unreadable += [f"{job.path}: is a pipe, a socket or a device, not a file" for job in special]
    gone = {*missing, *special}
    listing.entries = [job for job in listing.entries if job not in gone]


def _is_special(path: str) -> bool:
    """Return True if a path is a pipe, socket or device, which may block when opened."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _jobs(sources: InputSources, listing: InputListing) -> Iterator[Job]:
    listing.searched = any(is_url(name) and "*" in name for name in sources.paths)
    for path in (one for name in sources.paths for one in expand_shards(name)):
        if path == "-":
            listing.several = True
            yield from _list_jobs(path, sources, listing)
        elif os.path.isdir(path):
            listing.several = listing.searched = True
            yield from _folder_jobs(path, sources, listing)
        elif path.lower().endswith(SUFFIXES):
            listing.several = True
            yield from _manifest_jobs(path)
        else:
            listing.several |= is_shard(path)
            yield Job(path, root=_mirror_root(path))
    for name in sources.lists:
        yield from _list_jobs(name, sources, listing)
    for name in sources.manifests:
        yield from _manifest_jobs(name)


def _mirror_root(path: str) -> str:
    """Return ``.`` for a relative path below the working folder, else the folder of the file."""
    if is_url(path):
        return path.rpartition("/")[0]
    relative = os.path.normpath(path)
    if os.path.isabs(relative) or relative.startswith(os.pardir):
        return os.path.dirname(path) or "."
    return "."


def _list_jobs(name: str, sources: InputSources, listing: InputListing) -> Iterator[Job]:
    text = _read_list(name, errors="surrogateescape")
    for path in text.split("\0") if "\0" in text else (line.rstrip("\r") for line in text.split("\n")):
        if path.strip() and (is_shard(path) or _is_clip(path, path, sources, listing)):
            yield Job(path, root=_mirror_root(path))


def _manifest_jobs(name: str) -> Iterator[Job]:
    yield from parse_manifest(_read_list(name), "standard input" if name == "-" else name, os.path.dirname(name))


def _folder_jobs(folder: str, sources: InputSources, listing: InputListing) -> Iterator[Job]:
    """Yield the videos in and below ``folder``, without hidden ones and without following links to folders."""

    paths: list[str] = []

    def failed(error: OSError) -> None:
        listing.unreadable.append(f"{error.filename}: cannot be listed: {error.strerror}")

    for here, folders, files in os.walk(folder, onerror=failed):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not matches_any(_posix(os.path.join(here, name), folder), sources.exclude)
        ]
        paths += [os.path.join(here, name) for name in files if not name.startswith(".")]
    for path in sorted(paths):
        if _is_clip(path, _posix(path, folder), sources, listing):
            yield Job(path, root=folder)


def _posix(path: str, folder: str) -> str:
    return os.path.relpath(path, folder).replace(os.sep, "/")


def _is_clip(path: str, relative: str, sources: InputSources, listing: InputListing) -> bool:
    """Return True if a path of a folder or list is a clip; count it as skipped if not."""
    allowed = EXTENSIONS
    if sources.images:
        from vidspec.video.image import IMAGES

        allowed |= IMAGES
    if os.path.splitext(path)[1].lstrip(".").lower() not in allowed:
        listing.not_video += 1
        return False
    if path.lower().endswith(_SCRIPTS) and os.path.isfile(path) and _is_script(path):
        listing.not_video += 1
        return False
    relative = relative.replace(os.sep, "/").lstrip("/")
    if matches_any(relative, sources.exclude) or (sources.include and not matches_any(relative, sources.include)):
        listing.excluded += 1
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


def _read_list(name: str, errors: str = "strict") -> str:
    return read_text(name, MAX_LIST_BYTES, "standard input" if name == "-" else name, pipe=True, errors=errors)


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
