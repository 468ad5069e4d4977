"""Clips in Parquet files: a row each, with its bytes or the path of a file.

Listing reads the columns of text, numbers, lists and structs; columns with bytes are read clip by clip.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Generator, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from vidspec.bounds import LONGEST_PROMPT
from vidspec.errors import UsageError, VideoError
from vidspec.runs.access import is_url
from vidspec.runs.allowance import Allowance, FetchLimits
from vidspec.runs.job import Job, MemberSource
from vidspec.runs.parquet_pages import largest_page, read_row_groups
from vidspec.runs.sources.base import ListOptions, Source, sources
from vidspec.runs.sources.manifests import PATH_KEYS
from vidspec.runs.stores import copy, open_url, retry

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch, Scalar, Schema
    from pyarrow.parquet import ParquetFile

__all__ = ["ParquetSource"]

#: Columns that give a record's ``id``.
ID_KEYS = ("__key__", "key", "id")
#: Read buffer of a column, in bytes.
_BUFFER = 1 << 20
#: Rows of paths decoded per batch, and bytes of them if each were as long as a page.
ROWS, ROWS_BYTES = 4096, 64 << 20
#: Maximum characters of a path or an id.
MAX_NAME = 1 << 16
#: Type prefixes of columns that may hold paths.
TEXT_TYPES = ("string", "large_string", "dictionary<values=string", "dictionary<values=large_string")
#: Types whose values are bytes, or cannot be written as JSON.
_NOT_COPIED = re.compile(r"binary|extension|union|map<")
#: Maximum of skipped rows kept for other threads, which read them next.
_MAX_SKIPPED = 8


@sources.register("parquet")
class ParquetSource(Source):
    """Rows of Parquet files. The last column that was opened is read forward, page by page."""

    suffixes = (".parquet",)

    def __init__(self, limits: FetchLimits | None = None) -> None:
        super().__init__(limits)
        self._lock = threading.Lock()
        self._column = "", ""  # file being read, and its column
        self._values: Generator[bytes | str | None, None, None] | None = None
        self._next = 0
        self._skipped: OrderedDict[int, bytes | str | None] = OrderedDict()

    def list(self, file: Job, options: ListOptions) -> Iterator[Job]:
        """Yield a job per row: with its bytes as the source, or with the path that the row names."""
        name, access = file.path, self.limits.access
        with open_url(name, self.limits) as content:
            size = content.seek(0, os.SEEK_END)
            table = _open_parquet(name, content)
            schema = table.schema_arrow
            if not 0 <= table.metadata.num_rows <= size:
                raise VideoError(f"{name}: cannot have {table.metadata.num_rows} rows", kind="damaged")
            column = _clip_column(name, schema, options.column)
            ids = next((key for key in ID_KEYS if schema.names.count(key) == 1 and key != column), None)
            paths = None if _is_bytes(schema, column) else column
            own = {column, ids} - {*options.fields}
            kept = [key for key in schema.names if key not in own and _is_copied(schema, key)]
            reader = _RowReader(kept, options.fields)
            seen = set[tuple[str, str | None]]()
            rows = _iter_rows(name, content, table, [*dict.fromkeys(filter(None, (ids, paths, *kept)))])
            for row, values in enumerate(rows):
                try:
                    identity = None if ids is None else _bounded(values[ids].as_py(), MAX_NAME)
                    row_id = None if identity is None else str(identity)
                    columns = reader.columns(values)
                    if paths is None:
                        source = MemberSource(name, row, size, None, column, "parquet")
                        member = file.member(f"{name}/{row:05d}", source)
                    elif (path := _bounded(values[paths].as_py(), MAX_NAME)) is not None and (path, row_id) not in seen:
                        seen.add((path, row_id))
                        path = access.locate(name, path)
                        member = file.member(path, MemberSource(path) if is_url(path) else None)
                    else:
                        continue
                    member.id, member.columns = row_id, columns
                except (ValueError, ArithmeticError, VideoError) as error:  # unreadable or refused
                    path = f"{name}/{row:05d}"
                    if not isinstance(error, VideoError):
                        error = VideoError(f"{path}: cannot be read: {error}", kind="damaged")
                    member = file.member(path, MemberSource(name, kind="parquet"), error)
                yield member

    def open(self, job: Job, folder: str) -> bytes | str:
        assert job.source is not None
        source, limits = job.source, self.limits._replace(access=self.access(job))
        with self._lock:
            next_value = partial(self._next_value, source.url, source.column or "", source.start, limits)
            content = retry(source.url, next_value)
        if isinstance(content, bytes):
            if len(content) > limits.most:
                raise Allowance(source.url, limits).size_error()
            return content
        named = limits.access.locate(source.url, content)
        if not is_url(named):
            return named
        file = Path(folder, f"clip{posixpath.splitext(content)[1].lower() or '.mp4'}")
        copy(named, file, limits=limits)
        return str(file)

    def close(self) -> None:
        with self._lock:
            self._close_column()

    def _close_column(self) -> None:
        if self._values is not None:
            self._values.close()
        self._values = None

    def _next_value(self, url: str, column: str, row: int, limits: FetchLimits) -> bytes | str:
        """Return a value of a column, which is read forward page by page and reopened for an earlier row."""
        if self._values is None or (url, column) != self._column or (row < self._next and row not in self._skipped):
            self._close_column()
            self._column, self._values, self._next = (url, column), _iter_column(url, column, row, limits), row
            self._skipped.clear()
        try:
            while self._next <= row:
                self._skipped[self._next] = next(self._values)
                self._next += 1
                if len(self._skipped) > _MAX_SKIPPED:
                    self._skipped.popitem(last=False)
        except StopIteration:
            self._close_column()
            raise VideoError(f"row {row} is missing", kind="truncated") from None
        except Exception:
            self._close_column()  # the next attempt reopens the file
            raise
        content = self._skipped.pop(row, None)
        if content is None:
            raise VideoError(f"row {row} holds no bytes", kind="empty")
        return content


class _RowReader:
    """Values of rows as the columns of records.

    Args:
        kept: the columns.
        named: columns that prompts or a template name: a row whose text in one is too long is an error, in others the
            text is left out.
    """

    def __init__(self, kept: Collection[str], named: Collection[str]) -> None:
        self._kept, self._named = kept, named
        self._known: dict[tuple[type, str], object] = {}  # a long value of many rows is kept once

    def columns(self, values: Mapping[str, Scalar]) -> dict[str, object]:
        """Return the columns of a row that have a value.

        Raises:
            ValueError: a value that is named is too long, or damaged.
        """
        columns = {}
        for key in self._kept:
            try:
                value = self._bounded(_plain(values[key].as_py()))
            except (ValueError, ArithmeticError):
                if key in self._named:
                    raise
                continue
            if value is not None:
                columns[key] = value
        return columns

    def _bounded(self, value: object) -> object:
        if not isinstance(value, str | list | dict):
            return value
        text = value if isinstance(value, str) else json.dumps(value)
        return self._known.setdefault((type(value), _bounded(text, LONGEST_PROMPT)), value)


def _plain(value: object) -> object:
    """Return a value of a row as JSON has it: dates and decimals as text, numbers that are not finite as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _bounded(value: Any, most: int) -> Any:
    """Return a value of a row that is not too long a text.

    Raises:
        ValueError: it is.
    """
    if isinstance(value, str) and len(value) > most:
        raise ValueError(f"a text of {len(value)} characters")
    return value


def _iter_rows(name: str, file: BinaryIO, table: ParquetFile, columns: list[str]) -> Iterator[dict[str, Scalar]]:
    """Yield the values of each row in these columns."""
    if not columns:
        yield from ({} for _ in range(table.metadata.num_rows))
        return
    for number, group in enumerate(read_row_groups(name, file)):
        if not group.rows:
            continue  # its offsets are of no page
        longest = max(largest_page(name, file, group, key) for key in columns)
        rows = min(ROWS, max(1, ROWS_BYTES // max(1, longest)))
        for batch in table.iter_batches(rows, [number], columns, use_threads=False):
            values = {key: _column_of(batch, key) for key in columns}
            for row in range(batch.num_rows):
                yield {key: value[row] for key, value in values.items()}


def _open_parquet(name: str, file: BinaryIO) -> ParquetFile:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        hint = "copy or download it again"
        raise VideoError(f"{name}: is not a Parquet file", kind="not_video", hint=hint) from error


def _is_bytes(schema: Schema, column: str) -> bool:
    """Return True if a column holds bytes, or structs of bytes and path (Hugging Face datasets)."""
    kind = str(_column_type(schema, column))
    return (
        kind in ("binary", "large_binary") or re.match(r"struct<(\w+: \w+, )*bytes: (large_)?binary", kind) is not None
    )


def _is_copied(schema: Schema, column: str) -> bool:
    """Return True if the values of a column are copied to records: those without bytes."""
    return _NOT_COPIED.search(str(_column_type(schema, column))) is None and schema.names.count(column) == 1


def _column_type(schema: Schema, column: str) -> DataType | None:
    """Return the type of a column, or of a field of structs (``video.path``); None if there is none."""
    if column in schema.names:
        return schema.field(schema.names.index(column)).type
    outer, *fields = column.split(".")
    if not fields or schema.names.count(outer) != 1:
        return None
    kind = schema.field(outer).type
    for name in fields:
        if not str(kind).startswith("struct<") or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


def _column_of(batch: RecordBatch, column: str) -> Array:
    """Return a column, or a field of structs (``video.path``), of rows that were read for it."""
    from pyarrow import compute

    if (at := batch.schema.get_field_index(column)) >= 0:
        return batch.column(at)
    outer, *fields = column.split(".")
    return compute.struct_field(batch.column(batch.schema.get_field_index(outer)), fields)


def _clip_column(name: str, schema: Schema, wanted: str | None) -> str:
    """Return the column of clips.

    Raises:
        UsageError: the column is missing, or none is named and the choice is ambiguous.
        VideoError: the column is there twice, or holds neither bytes nor text.
    """
    names = list(dict.fromkeys(schema.names))
    candidates = [one for one in names if _is_bytes(schema, one)]
    candidates = candidates or [one for one in (*PATH_KEYS, "url") if one in names][:1]
    if wanted is not None:
        candidates = [] if _column_type(schema, wanted) is None else [wanted]
    if len(candidates) != 1:
        problem = "it does not say which column holds the clips" if wanted is None else f"has no column {wanted}"
        columns = ", ".join(f"{one.name} ({one.type})" for one in schema)
        raise UsageError(f"{name}: {problem}", hint=f"name one with --column: {columns}")
    (column,) = candidates
    if schema.names.count(column) > 1:
        raise VideoError(f"{name}: has the column {column} {schema.names.count(column)} times", kind="unsupported")
    if not _is_bytes(schema, column) and not str(_column_type(schema, column)).startswith(TEXT_TYPES):
        message = f"{name}: column {column} holds neither bytes nor text, but {_column_type(schema, column)}"
        raise VideoError(message, kind="unsupported", hint="--column NAME")
    return column


def _iter_column(url: str, column: str, row: int, limits: FetchLimits) -> Generator[bytes | str | None, None, None]:
    """Yield the bytes of a column from a row on, or the paths of rows without, without reading the groups before it."""
    allowance = Allowance(url, limits)
    with open_url(url, limits, allowance) as file:
        table = _open_parquet(url, file)
        for place, group in enumerate(read_row_groups(url, file)):
            if row >= group.rows:
                row -= group.rows
                continue
            if group.unpacks:
                largest_page(url, file, group, column)
            for number, batch in enumerate(table.iter_batches(1, [place], [column], use_threads=False)):
                if number >= row:
                    value = _column_of(batch, column)[0].as_py()
                    yield (value.get("bytes") or value.get("path") or None) if isinstance(value, Mapping) else value
                allowance.renew()  # limits hold per row
            row = 0
