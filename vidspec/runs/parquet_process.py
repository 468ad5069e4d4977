"""Read Parquet files by pyarrow in another process with limited memory: a hostile file ends that process alone.

The process opens no file; its parent sends it the bytes for which pyarrow asks.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
from collections.abc import Collection, Generator, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

from vidspec import memory
from vidspec.bounds import LONGEST_PROMPT
from vidspec.channel import Channel
from vidspec.errors import UsageError, VideoError, VidspecError
from vidspec.process import Child, ChildEnded, spawn
from vidspec.runs.read_worker import MOST_MEMORY
from vidspec.runs.sources.manifests import PATH_KEYS
from vidspec.runs.stores import SizedFile

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch, Schema
    from pyarrow.parquet import ParquetFile

__all__ = ["ParquetColumn", "ParquetRow", "RowsRequest", "ValuesRequest", "read_parquet"]

#: Columns that give a record's ``id``.
ID_KEYS = ("__key__", "key", "id")
#: Read buffer of a column, in bytes.
_BUFFER = 1 << 20
#: Rows decoded per batch.
ROWS = 256
#: Maximum characters of a path or an id.
MAX_NAME = 1 << 16
#: Memory for each packed byte of the largest column in a row group. Video does not shrink, so honest pages need less.
_PER_BYTE = 6
#: Seconds without an answer after which the process is ended.
_STALL_S = 60.0
#: Type prefixes of columns that may hold paths.
_TEXT_TYPES = ("string", "large_string", "dictionary<values=string", "dictionary<values=large_string")
#: Types whose values are bytes, or cannot be written as JSON.
_NOT_COPIED = re.compile(r"binary|extension|union|map<")


class RowsRequest(NamedTuple):
    """Lists the rows; the answers are a :class:`ParquetColumn`, then lists of :class:`ParquetRow`.

    Attributes:
        name: of the file, for messages.
        column: column of the clips; None to detect it.
        fields: columns that prompts or a template name: a row whose text in one is too long is an error, in others the
            text is left out.
        longest: most characters of a text.
        room: bytes of memory beside those for the file.
    """

    name: str
    column: str | None
    fields: Collection[str]
    longest: int = LONGEST_PROMPT
    room: int = MOST_MEMORY


class ValuesRequest(NamedTuple):
    """Reads the bytes of a column from a row on, or the paths of rows without; ``()`` answers for a row before it.

    The groups before are not read. ``room`` is as in :class:`RowsRequest`.
    """

    name: str
    column: str
    row: int
    room: int = MOST_MEMORY


class ParquetColumn(NamedTuple):
    """Column of the clips, and True if it holds bytes."""

    name: str
    holds_bytes: bool


class ParquetRow(NamedTuple):
    """A row: id, path if the column of clips holds paths, other columns; or the reason why it cannot be read."""

    id: str | None = None
    path: str | None = None
    columns: Mapping[str, object] = {}
    error: str | None = None


class _Bytes(NamedTuple):
    """Message: bytes of the file that are needed."""

    at: int
    size: int


_Request: TypeAlias = RowsRequest | ValuesRequest
#: A process without work, kept for the next file.
_idle: list[Child] = []
_idle_lock = threading.RLock()  # a generator may be closed by the garbage collector


def read_parquet(request: _Request, file: BinaryIO) -> Generator[Any, None, None]:
    """Yield the answers to a request about a file.

    Raises:
        VideoError: the file is damaged, does not fit into memory, or has ended the process.
        UsageError: the column is missing or ambiguous.
        Exception: any exception of ``file``.
    """
    with _idle_lock:
        child = _idle.pop() if _idle else None
    if child is None or not child.alive:
        child = spawn(_serve, name="vidspec parquet")
    waits = False  # for the next message, so that it can go on with another file
    try:
        child.send((request, file.seek(0, os.SEEK_END)))
        while True:
            answer = child.receive(stall=_STALL_S)
            if isinstance(answer, _Bytes):
                file.seek(answer.at)
                child.send(file.read(answer.size))
                continue
            waits = True
            if isinstance(answer, Exception):
                raise answer
            if answer is None:
                return
            yield answer
            waits = False
            child.send(True)
    except ChildEnded as ended:
        message = f"{request.name}: the process that read it ended ({ended.reason})"
        raise VideoError(message, kind="crashed", hint="the file may be damaged") from None
    except TimeoutError:
        raise VideoError(f"{request.name}: no row was read for {_STALL_S:g} s", kind="stalled") from None
    finally:
        with _idle_lock:
            keeps = waits and not _idle
            _idle.extend([child] * keeps)
        if not keeps:
            child.end()


def _serve(channel: Channel) -> None:
    """Run the process."""
    message = channel.receive()
    while True:
        message = _serve_file(channel, *message)


def _serve_file(channel: Channel, request: _Request, size: int) -> Any:
    """Send the answers to a request, each when it is wanted, and return the next message after them."""
    last: Exception | None = None
    try:
        for answer in _answers(request, _RemoteFile(channel, size), size):
            channel.send(answer)
            if (message := channel.receive()) is not True:
                return message
    except VidspecError as error:
        last = error
    except MemoryError:
        hint = "write the file again without compression"
        last = VideoError(f"{request.name}: takes too much memory to unpack", kind="too_large", hint=hint)
    except Exception as error:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        last = VideoError(f"{request.name}: cannot be read: {said}", kind="damaged", hint="copy or download it again")
    channel.send(last)
    return channel.receive()


class _RemoteFile(SizedFile):
    """The parent's file."""

    def __init__(self, channel: Channel, size: int) -> None:
        super().__init__(size)
        self._channel = channel

    def readinto(self, buffer: Any) -> int:
        self._channel.send(_Bytes(self.at, len(buffer)))
        content = self._channel.receive()
        buffer[: len(content)] = content
        self.at += len(content)
        return len(content)


def _answers(request: _Request, file: _RemoteFile, size: int) -> Iterator[object]:
    import pyarrow
    from pyarrow import parquet

    memory.limit_memory(request.room)
    try:
        table = parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, MemoryError):
            raise
        hint = "copy or download it again"
        raise VideoError(f"{request.name}: is not a Parquet file", kind="not_video", hint=hint) from error
    if not 0 <= table.metadata.num_rows <= size:
        raise VideoError(f"{request.name}: cannot have {table.metadata.num_rows} rows", kind="damaged")
    if isinstance(request, ValuesRequest):
        _limit_memory(table, {request.column}, request.room, size)
        yield from _values(table, request.column, request.row)
    else:
        yield from _rows(table, request, size)


def _limit_memory(table: ParquetFile, columns: Collection[str], room: int, size: int) -> None:
    """Limit memory to what these columns may take."""
    metadata, outer = table.metadata, {name.split(".")[0] for name in columns} | set(columns)
    numbers = [at for at in range(metadata.num_columns) if metadata.schema.column(at).path.split(".")[0] in outer]
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    packed = [group.column(at).total_compressed_size for group in groups for at in numbers]
    memory.limit_memory(room + _PER_BYTE * min(size, max(packed, default=0)))


def _values(table: ParquetFile, column: str, row: int) -> Iterator[tuple[bytes | str | None, ...]]:
    for place in range(table.metadata.num_row_groups):
        if row >= (rows := table.metadata.row_group(place).num_rows):
            row -= rows
            continue
        for number, batch in enumerate(table.iter_batches(1, [place], [column], use_threads=False)):
            if number < row:
                yield ()
                continue
            value = _column_of(batch, column)[0].as_py()
            yield ((value.get("bytes") or value.get("path") or None) if isinstance(value, Mapping) else value,)
        row = 0


def _rows(table: ParquetFile, request: RowsRequest, size: int) -> Iterator[object]:
    schema = table.schema_arrow
    column = _clip_column(request.name, schema, request.column)
    ids = next((key for key in ID_KEYS if schema.names.count(key) == 1 and key != column), None)
    paths = None if _is_bytes(schema, column) else column
    own = {column, ids} - {*request.fields}
    kept = [key for key in schema.names if key not in own and _is_copied(schema, key)]
    yield ParquetColumn(column, paths is None)
    columns = [*dict.fromkeys(filter(None, (ids, paths, *kept)))]
    if not columns:
        yield [ParquetRow()] * table.metadata.num_rows
        return
    _limit_memory(table, columns, request.room, size)
    for number in range(table.metadata.num_row_groups):
        if not table.metadata.row_group(number).num_rows:
            continue  # its offsets are of no page
        for batch in table.iter_batches(ROWS, [number], columns, use_threads=False):
            values = {key: _column_of(batch, key) for key in columns}
            yield [_row(values, row, request, ids, paths, kept) for row in range(batch.num_rows)]


def _row(
    values: Mapping[str, Array], row: int, request: RowsRequest, ids: str | None, paths: str | None, kept: list[str]
) -> ParquetRow:
    try:
        identity = None if ids is None else _bounded(values[ids][row].as_py(), MAX_NAME)
        path = None if paths is None else _bounded(values[paths][row].as_py(), MAX_NAME)
        columns = {}
        for key in kept:
            try:
                value = _plain(values[key][row].as_py())
                _bounded(json.dumps(value) if isinstance(value, list | dict) else value, request.longest)
            except (ValueError, ArithmeticError):
                if key in request.fields:
                    raise
                continue
            if value is not None:
                columns[key] = value
    except (ValueError, ArithmeticError) as error:
        return ParquetRow(error=str(error))
    return ParquetRow(None if identity is None else str(identity), path, columns)


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
    if not _is_bytes(schema, column) and not str(_column_type(schema, column)).startswith(_TEXT_TYPES):
        message = f"{name}: column {column} holds neither bytes nor text, but {_column_type(schema, column)}"
        raise VideoError(message, kind="unsupported", hint="--column NAME")
    return column
