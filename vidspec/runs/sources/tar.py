"""Clips in a tar, as WebDataset groups them: reads headers only, and the texts beside clips that a prompt names."""

from __future__ import annotations

import json
import math
import os
import posixpath
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from vidspec.errors import VideoError, VidspecError
from vidspec.events.tally import counted
from vidspec.files import decode_text
from vidspec.runs.allowance import Allowance
from vidspec.runs.job import Job, MemberSource
from vidspec.runs.sources.base import EXTENSIONS, ListOptions, Source, clip_suffix, sources
from vidspec.runs.stores import copy, is_bug, open_url
from vidspec.video.image import IMAGES

__all__ = ["TarSource"]

#: Maximum bytes of the headers of one tar member, and maximum members of a tar.
MAX_HEADER, MAX_MEMBERS = 1 << 20, 1 << 23


class _Headers:
    """File object for reading tar headers: bounded bytes per member, and never past the end of the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.size = file, file.seek(0, os.SEEK_END)
        file.seek(0)
        self._left, self.members = MAX_HEADER, 0

    def begin(self) -> None:
        """Reset the :data:`MAX_HEADER` limit for the next member."""
        self._left = MAX_HEADER
        self.members += 1

    def read(self, size: int) -> bytes:
        self._left -= size
        if size < 0 or self._left < 0:
            raise tarfile.ReadError("a header is too long")
        return self._file.read(size)

    def seek(self, offset: int) -> int:
        if not 0 <= offset <= self.size:
            raise tarfile.ReadError("a member ends behind the file")
        return self._file.seek(offset)

    def tell(self) -> int:
        return self._file.tell()

    def content(self, member: tarfile.TarInfo) -> bytes:
        """Return the content of a member; empty if it is longer than :data:`MAX_HEADER`, which no text is."""
        if not 0 <= member.size <= MAX_HEADER:
            return b""
        self.seek(member.offset_data)
        return self._file.read(member.size)


class _Sample:
    """Members of a tar with one key, WebDataset's name for what stands before the first dot, by their names."""

    def __init__(self) -> None:
        self.videos: dict[str, tarfile.TarInfo] = {}
        self.pictures: dict[str, tarfile.TarInfo] = {}

    def clips(self, key: str) -> Iterator[tuple[str, tarfile.TarInfo]]:
        """Yield the videos, or the pictures if there is none, each with its id: the key, or one name of several."""
        clips = self.videos or self.pictures
        for name, member in clips.items():
            yield key if len(clips) == 1 else posixpath.splitext(name)[0].lstrip("/"), member


@sources.register("tar")
class TarSource(Source):
    """The videos of each key, or its pictures if there is no video."""

    suffixes = (".tar",)

    def list(self, file: Job, options: ListOptions) -> Iterator[Job]:
        samples: dict[str, _Sample] = {}
        values: dict[str, dict[str, object]] = {}  # of the texts beside clips, by member without suffix
        allowance = Allowance(file.path, self.limits, whole=False)
        failure: Exception | None = None
        with open_url(file.path, self.limits, allowance) as content:
            headers = _Headers(content)
            try:
                _read_members(file.path, headers, samples, values, options.fields, allowance)
            except Exception as error:
                failure = error
        for key, sample in samples.items():
            for name, member in sample.clips(key):
                columns = {**values.get(key, {}), **values.get(name, {})}
                existing = str(columns.pop("existing", "")) if "existing" in options.fields else None
                job = _member_job(file, member, headers.size)
                job.id, job.columns, job.existing = name, columns, existing
                yield job
        if failure is not None:
            raise failure

    def open(self, job: Job, folder: str) -> str:
        assert job.source is not None
        file = Path(folder, f"clip{clip_suffix(job.path)}")
        limits = self.limits._replace(access=self.access(job))
        copy(job.source.url, file, job.source.start, job.source.size, limits)
        return str(file)


def _read_members(
    name: str,
    headers: _Headers,
    samples: dict[str, _Sample],
    values: dict[str, dict[str, object]],
    fields: Collection[str],
    allowance: Allowance,
) -> None:
    """Read the headers of a tar, and the content of the texts that have named fields."""
    texts = {"txt" if name == "existing" else "json" for name in fields}
    at = 0
    try:
        tar = tarfile.open(fileobj=cast(BinaryIO, headers), mode="r:")  # noqa: SIM115  it owns no file
        while (member := tar.next()) is not None:
            member.name = posixpath.normpath(f"/{member.name}")
            folder, _, name_here = member.name.rpartition("/")
            stem, _, suffix = name_here.partition(".")  # as WebDataset groups files: dots of folders do not count
            key, suffix = f"{folder}/{stem}".lstrip("/"), suffix.rpartition(".")[2].lower()
            if stem and not member.isdir() and (suffix in EXTENSIONS or suffix in IMAGES):
                sample = samples.setdefault(key, _Sample())
                (sample.videos if suffix in EXTENSIONS else sample.pictures)[member.name] = member
            elif stem and suffix in texts and member.isreg():
                found = _sample_values(headers.content(member), suffix, fields)
                values.setdefault(posixpath.splitext(member.name)[0].lstrip("/"), {}).update(found)
            if tar.offset <= at or headers.members > MAX_MEMBERS:
                raise tarfile.ReadError("members without end")
            at = tar.offset
            headers.begin()
            allowance.renew()
        skipped = headers.tell() < tar.offset  # Python ends at a header that it refuses, too
        headers.seek(tar.offset)
        if skipped or any(headers.read(tarfile.BLOCKSIZE)):
            raise tarfile.ReadError("no member, and no end")
    except (VidspecError, OSError):
        raise
    except Exception as error:
        if is_bug(error):
            raise
        if not at:
            hint = "if it is a compressed tar, decompress it with gunzip"
            raise VideoError(f"{name}: is not a tar file", kind="not_video", hint=hint) from error
        clips = sum(len([*sample.clips(key)]) for key, sample in samples.items())
        message = f"{name}: is cut short or damaged after {counted(clips, 'clip')}"
        raise VideoError(message, kind="truncated") from error


def _sample_values(content: bytes, suffix: str, fields: Collection[str]) -> dict[str, object]:
    """Return the named values of a KEY.json, or the existing text of a KEY.txt; none of a file of another kind."""
    if suffix == "txt":
        return {"existing": decode_text(content, "replace").strip()}
    try:
        values = json.loads(decode_text(content), parse_constant=lambda _: None)
        known = values if isinstance(values, dict) else {}
        json.dumps(columns := {key: known[key] for key in fields if key != "existing" and known.get(key) is not None})
        return columns
    except (ValueError, RecursionError):
        return {}


def _member_job(shard: Job, member: tarfile.TarInfo, size: int) -> Job:
    """Return the job of a member in a tar of ``size`` bytes; with an error if it is invalid."""
    path = shard.path + member.name.replace("\0", "\\0")
    error: VideoError | None = None
    if "\0" in member.name:
        error = VideoError(f"{path}: its name holds a NUL", kind="unsupported")
    elif not member.isreg():
        error = VideoError(
            f"{path}: is a link or no file",
            kind="unsupported",
            hint="pack the files themselves, with tar -h --hard-dereference",
        )
    elif member.issparse():
        error = VideoError(f"{path}: is stored with holes", kind="unsupported", hint="pack it without --sparse")
    elif member.size < 0 or member.offset_data + member.size > size:
        error = VideoError(
            f"{path}: extends beyond the end of the tar", kind="truncated", hint="copy or download it again"
        )
    if error is not None:
        return shard.member(path, MemberSource(shard.path, kind="tar"), error)
    at = member.mtime * 1e9  # PAX headers may hold any number
    mtime_ns = int(at) if math.isfinite(at) and abs(at) < 2**63 else None
    return shard.member(path, MemberSource(shard.path, member.offset_data, member.size, mtime_ns, kind="tar"))
