"""Clips in tar (WebDataset) and Parquet shards: list them, and extract one at a time to a local file.

Listing reads only the headers of a tar, only the columns of a Parquet file that name clips, and the texts beside clips
that a prompt or a template names.
"""

from __future__ import annotations

import os
import posixpath
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO

from vidspec.bounds import LONGEST_PROMPT
from vidspec.errors import UsageError, VideoError, VidspecError
from vidspec.files import open_own
from vidspec.runs.allowance import Allowance, FetchLimits
from vidspec.runs.inputs import EXTENSIONS
from vidspec.runs.job import Job, MemberSource
from vidspec.runs.manifests import PATH_KEYS
from vidspec.runs.parquet_pages import largest_page, read_row_groups
from vidspec.runs.stores import copy, is_url, open_url, retry
from vidspec.runs.tar_members import list_tar
from vidspec.video.image import IMAGES

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch, Scalar, Schema
    from pyarrow.parquet import ParquetFile

__all__ = ["ShardFiles", "shard_members"]

#: Columns that give a record's ``id``.
ID_KEYS = ("__key__", "key", "id")
#: Signatures of pictures in a column; all other bytes are taken for a video.
_PICTURE = re.compile(rb"\xff\xd8\xff|\x89PNG|RIFF....WEBP|II\*\0|MM\0\*", re.DOTALL)
#: Read buffer of a column, in bytes.
_BUFFER = 1 << 20
#: Rows of paths decoded per batch, and bytes of them if each were as long as a page.
ROWS, ROWS_BYTES = 4096, 64 << 20
#: Maximum characters of a path or an id, and of the text in another column.
MAX_NAME = 1 << 16
#: Type prefixes of columns that may hold paths.
TEXT_TYPES = ("string", "large_string", "dictionary<values=string", "dictionary<values=large_string")
_TEXT_LISTS = ("list<element: string>", "list<item: string>")
#: Maximum of skipped rows kept for other threads, which read them next.
_MAX_SKIPPED = 8


def shard_members(
    shard: Job, column: str | None = None, limits: FetchLimits | None = None, fields: Collection[str] = ()
) -> list[Job]:
    """Return the clips in a shard as jobs, in the order of the shard and with its settings.

    An invalid clip becomes a job with an error. If the shard cannot be read to its end, the last job is the shard
    itself with the error.

    Args:
        shard: path or URL of a .tar or .parquet file.
        column: column of clips in a Parquet file, or field of a column of structs (``video.path``); None to detect it.
        limits: read limits and access rules; None for the defaults.
        fields: names that prompts and templates have in braces: columns of text or numbers in a Parquet file, or keys
            of KEY.json in a tar, become the jobs' columns; with ``existing``, KEY.txt is the jobs' existing text.

    Raises:
        VideoError: the shard cannot be read, is of another type, or has no clips.
        UsageError: the column is missing or ambiguous, or a package is missing.
    """
    limits = limits or FetchLimits()
    limits = limits._replace(access=limits.access.with_typed(shard.path))
    members: list[Job] = []

    def read() -> None:
        members.clear()
        if shard.path.lower().endswith(".tar"):
            list_tar(shard, limits, fields, members)
        else:
            _list_parquet(shard, column, limits, fields, members)

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


def _list_parquet(
    shard: Job, column: str | None, limits: FetchLimits, fields: Collection[str], members: list[Job]
) -> None:
    """Add a job per row: with its bytes as the source, or with the path that the row names.

    Raises:
        VideoError: the file is no Parquet file or is damaged; rows before the damage are added.
        UsageError: the column is ambiguous.
    """
    name = shard.path
    with open_url(name, limits) as file:
        size = file.seek(0, os.SEEK_END)
        table = _open_parquet(name, file)
        schema = table.schema_arrow
        if not 0 <= table.metadata.num_rows <= size:
            raise VideoError(f"{name}: cannot have {table.metadata.num_rows} rows", kind="damaged")
        column = _clip_column(name, schema, column)
        ids = next((key for key in ID_KEYS if schema.names.count(key) == 1 and key != column), None)
        paths = None if _is_bytes(schema, column) else column
        named = [key for key in dict.fromkeys(schema.names) if key in fields and _is_field(schema, key)]
        seen = set[tuple[str, str | None]]()
        texts: dict[str, str] = {}  # a long text in many rows is kept once
        for row, values in enumerate(
            _iter_rows(name, file, table, [*dict.fromkeys(filter(None, (ids, paths, *named)))])
        ):
            try:
                row_values = {key: _bounded(value.as_py(), key in named, texts) for key, value in values.items()}
                columns = {key: value for key in named if (value := row_values[key]) is not None and value == value}
                identity = None if ids is None else row_values[ids]
                row_id = None if identity is None else str(identity)
                if paths is None:
                    member = shard.member(f"{name}/{row:05d}", MemberSource(name, row, size, None, column))
                elif (path := row_values[paths]) is not None and (path, row_id) not in seen:
                    seen.add((path, row_id))
                    path = limits.access.locate(name, path)
                    member = shard.member(path, MemberSource(path) if is_url(path) else None)
                else:
                    continue
                member.id, member.columns = row_id, columns
                members.append(member)
            except (ValueError, ArithmeticError, VideoError) as error:  # unreadable or refused
                path = f"{name}/{row:05d}"
                if not isinstance(error, VideoError):
                    error = VideoError(f"{path}: cannot be read: {error}", kind="damaged")
                members.append(shard.member(path, MemberSource(name), error))


def _bounded(value: object, is_field: bool, texts: dict[str, str]) -> Any:
    """Return a value of a row that is not too long.

    Raises:
        ValueError: it is.
    """
    if isinstance(value, str):
        if len(value) > (LONGEST_PROMPT if is_field else MAX_NAME):
            raise ValueError(f"a text of {len(value)} characters")
        return texts.setdefault(value, value)
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


def _is_field(schema: Schema, column: str) -> bool:
    """Return True if prompts and templates may name a column: text, lists of text, and numbers."""
    kind = str(_column_type(schema, column))
    plain = kind.startswith((*TEXT_TYPES, "int", "uint", "float", "double", "bool")) or kind in _TEXT_LISTS
    return plain and schema.names.count(column) == 1


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


class ShardFiles:
    """Extracts clips of shards to local files, one at a time. Thread-safe.

    Args:
        limits: fetch limits; None for the defaults.
    """

    def __init__(self, limits: FetchLimits | None = None) -> None:
        self._limits = limits or FetchLimits()
        self._lock = threading.Lock()
        self._column = "", ""  # Parquet file being read, and its column
        self._values: Generator[bytes | str | None, None, None] | None = None
        self._next = 0
        self._skipped: OrderedDict[int, bytes | str | None] = OrderedDict()

    @contextmanager
    def local(self, path: str, source: MemberSource | None, shard: str | None = None) -> Iterator[str]:
        """Provide the clip as a local file within the context; errors that name the file are made to name the clip.

        A shard may be fetched from a private address, and its rows may name its host.

        Raises:
            VideoError: the clip cannot be fetched.
        """
        if source is None:
            yield path
            return
        limits = self._limits
        if shard is not None:
            limits = limits._replace(access=limits.access.with_typed(shard))
        with TemporaryDirectory(prefix="vidspec-", ignore_cleanup_errors=True) as folder:
            suffix = posixpath.splitext(path)[1].lower()  # the rest of the name may be any text
            file = Path(folder, f"clip{suffix if suffix[1:] in EXTENSIONS or suffix[1:] in IMAGES else ''}")
            try:
                if source.column is None:
                    copy(source.url, file, source.start, source.size, limits)
                elif isinstance(content := self._read_row(source, limits), str):
                    named = limits.access.locate(source.url, content)
                    file = file.with_suffix(posixpath.splitext(content)[1].lower() or ".mp4")
                    if is_url(named):
                        copy(named, file, limits=limits)
                    else:
                        file = Path(named)
                else:
                    file = file.with_suffix(".png" if _PICTURE.match(content) else ".mp4")
                    with open_own(file, "xb") as copied:
                        copied.write(content)
                yield str(file)
            except VidspecError as error:
                message = error.message.replace(str(file), path) if file.parent == Path(folder) else error.message
                message = message if path in message else f"{path}: {message}"
                raise type(error)(message, hint=error.hint, kind=error.kind, stage=error.stage) from error.__cause__

    def close(self) -> None:
        """Close the file that was read last."""
        with self._lock:
            self._close_column()

    def _read_row(self, source: MemberSource, limits: FetchLimits) -> bytes | str:
        """Return the bytes of a row, or the path that it names instead."""
        with self._lock:
            content = retry(
                source.url, partial(self._next_value, source.url, source.column or "", source.start, limits)
            )
        if isinstance(content, bytes) and len(content) > limits.most:
            raise Allowance(source.url, limits).size_error()
        return content

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
