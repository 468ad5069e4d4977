"""Collect the clips of a run: files, folders, lists and manifests become unique jobs. Opens no clip."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import bracex

from vidspec.errors import UsageError
from vidspec.runs.allowance import fetch_limits
from vidspec.runs.job import Job
from vidspec.runs.sources.base import ListOptions, is_shard, source_of, sources
from vidspec.runs.sources.files import list_paths, mirror_root
from vidspec.runs.sources.manifests import ManifestSource
from vidspec.runs.stores import is_url, match_urls

if TYPE_CHECKING:
    from vidspec.config.run_spec import RunSpec

__all__ = ["InputListing", "collect_inputs", "drop_missing", "expand_shards", "require_file"]

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


@dataclass
class InputListing:
    """Collected jobs in order, and counts of skipped inputs.

    ``several`` is True for a list, a folder or more than one file; output then names each clip. ``searched`` is True if
    some jobs were found in a folder or a store, where others may appear later.
    """

    entries: list[Job] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    several: bool = False
    searched: bool = False

    @property
    def left_out(self) -> str:
        """Counts of inputs left out by reason; empty if none."""
        duplicates = len(self.duplicates)
        more = duplicates > 1
        named = f"duplicate{'s' * more} ({self.duplicates[0]}{', ...' * more})" if duplicates else ""
        counts = {named: duplicates, **self.skipped}
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def collect_inputs(spec: RunSpec, *, links: bool = False) -> InputListing:
    """Collect all clips of a run, those of folders sorted by path.

    Paths are files, folders, manifests and shards (by their suffix), and ``-`` for a list on standard input. Braces of
    shards, and ``*`` in their URLs, are expanded. The same file with the same part, prompt and id counts once; later
    ones are duplicates. Links are followed, unless ``links`` to a clip are clips of their own, because each name gets
    a file.

    Raises:
        UsageError: none are named, a list, manifest or URL cannot be read, standard input is named twice, or an option
            has nothing to select from.
    """
    named = (*spec.paths, *spec.from_file, *spec.manifest)
    if not named:
        raise UsageError("Missing argument 'PATH'.", hint="see `vidspec caption --help`")
    if named.count("-") > 1:
        raise UsageError("standard input can be read once only", hint="name - once")
    if not (spec.from_file or any(path == "-" or os.path.isdir(path) for path in spec.paths)):
        hint = "name the clips alone, or their folder"
        spec.refuse(("include", "exclude", "include_images"), "needs a folder or a list", hint)
    listing = InputListing()
    seen: set[tuple[object, ...]] = set()
    for job in _jobs(spec, listing):
        key = (
            _file_key(job.path, links=links),
            *(job.start, job.end, job.prompt, job.questions, type(job.id), job.id),
        )
        if key in seen:
            listing.duplicates.append(job.path)
        else:
            seen.add(key)
            listing.entries.append(job)
    listing.several |= len(spec.paths) > 1 or bool(spec.from_file or spec.manifest)
    if not any(one.path.lower().endswith(".parquet") for one in listing.entries):
        names_urls = any(one.shard is not None for one in listing.entries)
        needing = ("column", "allow_paths", *(() if names_urls else ("allow_urls",)))
        spec.refuse(needing, "needs a Parquet file among the inputs")
    if any(is_shard(one.path) for one in listing.entries):
        hint = "leave it out: clips in a tar are recognised by the size and time stored there, also in a copy of it"
        spec.refuse(("checksum",), "needs clips that are files, not shards", hint)
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
    missing = [job for job in local if job.source is None and job.error is None and not os.path.lexists(job.path)]
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


def _jobs(spec: RunSpec, listing: InputListing) -> Iterator[Job]:
    options = ListOptions(
        spec.include, spec.exclude, spec.include_images, left_out=listing.skipped, unreadable=listing.unreadable
    )
    listing.searched = any(is_url(name) and "*" in name for name in spec.paths)
    for path in (one for name in spec.paths for one in expand_shards(name)):
        if path == "-":
            listing.several = True
            yield from list_paths(path, options)
        elif os.path.isdir(path):
            listing.several = listing.searched = True
            yield from sources.get("files")().list(Job(path), options)
        elif (source := source_of(path)) is not None and not source.is_shard:
            listing.several = True
            yield from source(fetch_limits(spec)).list(Job(path), options)
        else:
            listing.several |= source is not None
            yield Job(path, root=mirror_root(path))
    for name in spec.from_file:
        yield from list_paths(name, options)
    for name in spec.manifest:
        yield from ManifestSource(fetch_limits(spec)).list(Job(name), options)
