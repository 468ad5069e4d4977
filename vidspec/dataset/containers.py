"""Clips in tar files (WebDataset's shards) and in Parquet files: which there are, and one at a time as a local file.

Of a tar only the headers are read to find its clips, of a Parquet file only the columns that name them.
"""

from __future__ import annotations

import os
import posixpath
import re
import tarfile
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from vidspec.dataset.inputs import EXTENSIONS
from vidspec.dataset.job import Job, Source
from vidspec.dataset.manifests import PATH_KEYS
from vidspec.dataset.stores import attempt, copy, is_url, joined, opened
from vidspec.errors import UsageError, VideoError, VidspecError
from vidspec.video.image import IMAGES

if TYPE_CHECKING:
    from pyarrow import Schema
    from pyarrow.parquet import ParquetFile

__all__ = ["Files", "members"]

#: Columns that a record's ``id`` is taken from.
ID_KEYS = ("__key__", "key", "id")
#: How the pictures begin that a column may hold; all other bytes are taken for a video.
_PICTURE = re.compile(rb"\xff\xd8\xff|\x89PNG|RIFF....WEBP|II\*\0|MM\0\*", re.DOTALL)
#: Bytes that are read at once of a column.
_BUFFER = 1 << 20
#: Rows that were passed over on the way to a later one, which another thread asks for next.
_PASSED = 8


def members(shard: Job, column: str | None = None) -> list[Job]:
    """The clips in a shard, as the shard itself is asked for, in its order.

    Of a tar that is cut short the last one is the shard itself, with the error.

    Args:
        shard: path of a .tar or .parquet file, or its URL.
        column: of a Parquet file; None for the only one that can be meant.

    Raises:
        VideoError: it cannot be read, is no such file, or holds no clip.
        UsageError: the column is not there or not clear, or a package is missing.
    """
    name = shard.path
    tar = name.lower().endswith(".tar")
    found = attempt(name, lambda: list(_of_tar(shard) if tar else _of_parquet(shard, column)))
    if not found:
        raise VideoError(f"{name}: holds no clip", kind="no_frames", hint="a tar of .mp4, .webm, .jpg and such")
    return found


def _of_tar(shard: Job) -> Iterator[Job]:
    """Of each key the video, or without one the picture."""
    name = shard.path
    chosen: dict[str, tuple[bool, tarfile.TarInfo]] = {}
    broken = False
    with opened(name) as file:
        try:
            tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115  which has nothing to close
        except tarfile.TarError:
            hint = "of a compressed tar, gunzip makes one"
            raise VideoError(f"{name}: is not a tar file", kind="not_video", hint=hint) from None
        try:
            while (one := tar.next()) is not None:
                one.name = posixpath.normpath(f"/{one.name}")
                folder, base = posixpath.split(one.name)
                stem, suffix = base.split(".", 1)[0], base.rpartition(".")[2].lower()
                video = suffix in EXTENSIONS
                if one.isreg() and (video or suffix in IMAGES) and stem:
                    key = f"{folder}/{stem}"
                    chosen[key] = max(chosen.get(key, (False, one)), (video, one), key=lambda pair: pair[0])
            file.seek(tar.offset)
            broken = any(file.read(tarfile.BLOCKSIZE))
        except tarfile.TarError:
            broken = True
    for _, one in chosen.values():
        source = Source(name, one.offset_data, one.size, int(one.mtime * 1e9))
        yield replace(shard, path=f"{name}{one.name}", source=source, shard=name)
    if broken and not chosen:
        raise VideoError(f"{name}: is cut short or damaged", kind="truncated", hint="copy or download it again")
    if broken:
        error = VideoError(f"{name}: is cut short or damaged behind {len(chosen)} clips", kind="truncated")
        yield replace(shard, shard=name, error=error)


def _of_parquet(shard: Job, column: str | None) -> Iterator[Job]:
    """A job for each row: with its bytes as the source, or with the path that the row names."""
    name = shard.path
    with opened(name) as file:
        size = file.seek(0, os.SEEK_END)
        table = _table(name, file)
        schema = table.schema_arrow
        column = _column(name, schema, column)
        ids = next((key for key in ID_KEYS if key in schema.names and key != column), None)
        if _is_bytes(schema, column):
            for row, own in zip(range(table.metadata.num_rows), _texts(table, ids), strict=False):
                source = Source(name, row, size, None, column)
                yield replace(shard, path=f"{name}/{row:05d}", id=own, source=source, shard=name)
            return
        folder, seen = name.rpartition("/")[0] or ".", set[tuple[str | None, str | None]]()
        for path, own in zip(_texts(table, column), _texts(table, ids), strict=False):
            if path is not None and (path, own) not in seen:
                seen.add((path, own))
                path = joined(folder, path)
                yield replace(shard, path=path, id=own, source=Source(path) if is_url(path) else None, shard=name)


def _table(name: str, file: object) -> ParquetFile:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER)
    except pyarrow.ArrowInvalid:
        raise VideoError(f"{name}: is not a Parquet file", kind="not_video", hint="copy or download it again") from None


def _texts(table: ParquetFile, column: str | None) -> Iterator[str | None]:
    """A column as text; nothing but None without one."""
    if column is None:
        yield from (None for _ in range(table.metadata.num_rows))
        return
    for batch in table.iter_batches(columns=[column], use_threads=False):
        yield from (None if value is None else str(value) for value in batch.column(0).to_pylist())


def _is_bytes(schema: Schema, column: str) -> bool:
    """Whether a column is of bytes, or of such that stand beside a path (as in data sets of Hugging Face)."""
    from pyarrow import types

    kind = schema.field(column).type
    if types.is_struct(kind):
        return any(one.name == "bytes" for one in kind)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _column(name: str, schema: Schema, wanted: str | None) -> str:
    """The column of clips.

    Raises:
        UsageError: it is not there; or none is named, and it is not clear which one it is.
    """
    columns = ", ".join(f"{one.name} ({one.type})" for one in schema)
    if wanted is not None:
        if wanted in schema.names:
            return wanted
        raise UsageError(f"{name}: has no column {wanted}", hint=f"columns: {columns}")
    found = [one for one in schema.names if _is_bytes(schema, one)]
    found = found or [one for one in (*PATH_KEYS, "url") if one in schema.names][:1]
    if len(found) != 1:
        raise UsageError(f"{name}: which column has the clips?", hint=f"--column NAME; columns: {columns}")
    return found[0]


class Files:
    """Gives clips out of shards as local files, one at a time; may be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._column = "", ""  # the Parquet file that is being read, and its column
        self._values: Generator[bytes | None, None, None] | None = None
        self._next = 0
        self._passed: OrderedDict[int, bytes | None] = OrderedDict()

    @contextmanager
    def local(self, path: str, source: Source | None) -> Iterator[str]:
        """A file with the clip while this lasts; errors in here that name it name the clip instead.

        Raises:
            VideoError: the clip cannot be had.
        """
        if source is None:
            yield path
            return
        with TemporaryDirectory(prefix="vidspec-", ignore_cleanup_errors=True) as folder:
            file = Path(folder, os.path.basename(path))
            try:
                if source.column is None:
                    copy(source.url, file, source.start, source.size)
                else:
                    with self._lock:
                        content = attempt(source.url, partial(self._value, source.url, source.column, source.start))
                    file = file.with_suffix(".png" if _PICTURE.match(content) else ".mp4")
                    file.write_bytes(content)
                yield str(file)
            except VidspecError as error:
                message = error.message.replace(str(file), path)
                message = message if path in message else f"{path}: {message}"
                raise type(error)(message, hint=error.hint, kind=error.kind, stage=error.stage) from None

    def close(self) -> None:
        """Let go of the file that was read last."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._values is not None:
            self._values.close()
        self._values = None

    def _value(self, url: str, column: str, row: int) -> bytes:
        """A value of a column that is read forward, page by page; begun anew for one that lies behind."""
        if self._values is None or (url, column) != self._column or (row < self._next and row not in self._passed):
            self._end()
            self._column, self._values, self._next = (url, column), _values(url, column, row), row
            self._passed.clear()
        try:
            while self._next <= row:
                self._passed[self._next] = next(self._values)
                self._next += 1
                if len(self._passed) > _PASSED:
                    self._passed.popitem(last=False)
        except Exception:
            self._end()  # the next attempt begins anew
            raise
        content = self._passed.pop(row, None)
        if content is None:
            raise VideoError(f"row {row} holds no bytes", kind="empty")
        return content


def _values(url: str, column: str, row: int) -> Generator[bytes | None, None, None]:
    """The bytes of a column from a row on; of the row groups before it nothing is read."""
    with opened(url) as file:
        table = _table(url, file)
        groups = list(range(table.num_row_groups))
        while row >= (rows := table.metadata.row_group(groups[0]).num_rows):
            row -= rows
            del groups[0]
        batches = table.iter_batches(1, groups, [column], use_threads=False)
        for batch in islice(batches, row, None):
            value = batch.column(0)[0].as_py()
            yield value.get("bytes") if isinstance(value, Mapping) else value
