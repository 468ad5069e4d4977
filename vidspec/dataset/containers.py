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
    tar = shard.path.lower().endswith(".tar")
    found = attempt(shard.path, lambda: list(_of_tar(shard) if tar else _of_parquet(shard, column)))
    if not found:
        raise VideoError(f"{shard.path}: holds no clip", kind="no_frames", hint="a tar of .mp4, .webm, .jpg and such")
    if found[0].error is not None:
        raise found[0].error
    return found


def _of_tar(shard: Job) -> Iterator[Job]:
    """Of each key the video, or without one the picture."""
    name, broken = shard.path, False
    chosen: dict[str, tarfile.TarInfo] = {}
    with opened(name) as file:
        try:
            tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115  which has nothing to close
        except tarfile.TarError:
            hint = "of a compressed tar, gunzip makes one"
            raise VideoError(f"{name}: is not a tar file", kind="not_video", hint=hint) from None
        try:
            while (one := tar.next()) is not None:
                one.name = posixpath.normpath(f"/{one.name}")
                key, _, suffix = one.name.partition(".")
                suffix = suffix.rpartition(".")[2].lower()
                if one.isreg() and not key.endswith("/") and (suffix in EXTENSIONS or suffix in IMAGES):
                    chosen[key] = one if suffix in EXTENSIONS else chosen.get(key, one)
            file.seek(tar.offset)
            broken = any(file.read(tarfile.BLOCKSIZE))
        except tarfile.TarError:
            broken = True
    for one in chosen.values():
        source = Source(name, one.offset_data, one.size, int(one.mtime * 1e9))
        yield replace(shard, path=f"{name}{one.name}", source=source, shard=name)
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
        texts = [*filter(None, (ids, None if _is_bytes(schema, column) else column))]
        rows = table.read(texts).to_pylist() if texts else [{}] * table.metadata.num_rows
    folder, seen = name.rpartition("/")[0] or ".", set[tuple[str, str | None]]()
    for row, values in enumerate(rows):
        own = None if values.get(ids) is None else str(values[ids])
        if column not in texts:
            source = Source(name, row, size, None, column)
            yield replace(shard, path=f"{name}/{row:05d}", id=own, source=source, shard=name)
        elif values[column] is not None and (values[column], own) not in seen:
            seen.add((values[column], own))
            path = joined(folder, values[column])
            yield replace(shard, path=path, id=own, source=Source(path) if is_url(path) else None, shard=name)


def _table(name: str, file: object) -> ParquetFile:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER)
    except pyarrow.ArrowInvalid:
        raise VideoError(f"{name}: is not a Parquet file", kind="not_video", hint="copy or download it again") from None


def _is_bytes(schema: Schema, column: str) -> bool:
    """Whether a column is of bytes, or of such that stand beside a path (as in data sets of Hugging Face)."""
    kind = str(schema.field(column).type)
    return kind in ("binary", "large_binary") or kind.startswith("struct<bytes: binary")


def _column(name: str, schema: Schema, wanted: str | None) -> str:
    """The column of clips.

    Raises:
        UsageError: it is not there; or none is named, and it is not clear which one it is.
    """
    found = [one for one in schema.names if _is_bytes(schema, one)]
    found = found or [one for one in (*PATH_KEYS, "url") if one in schema.names][:1]
    found = found if wanted is None else [one for one in schema.names if one == wanted]
    if len(found) != 1:
        what = "which column has the clips?" if wanted is None else f"has no column {wanted}"
        columns = ", ".join(f"{one.name} ({one.type})" for one in schema)
        raise UsageError(f"{name}: {what}", hint=f"--column NAME, of {columns}")
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
