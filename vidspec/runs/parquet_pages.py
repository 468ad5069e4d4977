"""Row groups and pages of a Parquet file, by its footer and the pages' headers. Unpacks none.

A page of kilobytes may unpack to gigabytes. The footer is read here since pyarrow ends the process at a column whose
codec or statistics are damaged: its accessors of columns catch no exception of C++.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from vidspec.errors import VideoError

__all__ = ["MAX_PAGE", "RowGroup", "largest_page", "read_row_groups"]

#: Bytes of an unpacked page that any file may have, and the ratio to its packed bytes that a larger one may have. Video
#: does not shrink, so that honest pages of any size stay far below.
MAX_PAGE, MAX_RATIO = 256 << 20, 16
#: Bytes read for a page's header at first, and at most.
_HEADER, _MAX_HEADER = 1 << 13, 1 << 24
#: Numbers of types in Thrift's compact protocol.
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
#: Nested structs and lists at most.
_DEPTH = 8
#: Codecs whose pages unpack to few times their size: none, and Snappy.
_MODEST = (0, 1)
#: Bytes behind the footer: its length and a mark; bytes read for the footer at first.
_TAIL, _FOOTER = 8, 1 << 16

_Fields: TypeAlias = Mapping[int, "_Fields | None"]
#: Fields of FileMetaData, down to those of ColumnMetaData: path, codec, packed bytes, first data and dictionary page.
_ROW_GROUPS, _CHUNKS, _ROWS, _COLUMN = 4, 1, 3, 3
_PATH, _CODEC, _PACKED, _DATA, _DICTIONARY = 3, 4, 7, 9, 11
_METADATA: _Fields = {
    _ROW_GROUPS: {
        _CHUNKS: {_COLUMN: dict.fromkeys((_PATH, _CODEC, _PACKED, _DATA, _DICTIONARY))},
        _ROWS: None,
    }
}
#: Fields of a page's header.
_UNPACKED_BYTES, _PACKED_BYTES = 2, 3
_PAGE: _Fields = {_UNPACKED_BYTES: None, _PACKED_BYTES: None}


class ColumnChunk(NamedTuple):
    """A column in a row group: its name, fields after dots, and the bytes of its pages."""

    path: str
    codec: int
    begin: int
    end: int


class RowGroup(NamedTuple):
    """Number of rows, and the columns."""

    rows: int
    chunks: tuple[ColumnChunk, ...]

    @property
    def unpacks(self) -> bool:
        """True if pages may unpack to many times their size."""
        return any(chunk.codec not in _MODEST for chunk in self.chunks)


def read_row_groups(name: str, file: BinaryIO) -> list[RowGroup]:
    """Return the row groups of a Parquet file.

    Raises:
        VideoError: the footer is damaged.
    """
    try:
        groups = _CompactReader(_read_footer(file)).struct(_METADATA)[_ROW_GROUPS]
        return [RowGroup(int(group[_ROWS]), tuple(map(_chunk, group[_CHUNKS]))) for group in groups]
    except (LookupError, TypeError, ValueError) as error:
        hint = "copy or download it again"
        raise VideoError(f"{name}: its footer is damaged", kind="damaged", hint=hint) from error


def _read_footer(file: BinaryIO) -> bytes:
    size = file.seek(0, os.SEEK_END)
    wanted = _FOOTER
    while True:
        file.seek(size - min(size, wanted))
        tail = file.read(min(size, wanted))
        length = int.from_bytes(tail[-_TAIL : -_TAIL // 2], "little") + _TAIL
        if length <= len(tail):
            return tail[-length:-_TAIL]
        if wanted >= size:
            raise ValueError(f"a footer of {length} bytes in a file of {size}")
        wanted = length


def _chunk(chunk: Mapping[int, Any]) -> ColumnChunk:
    column = chunk[_COLUMN]
    data, packed = int(column[_DATA]), int(column[_PACKED])
    begin = min(int(column.get(_DICTIONARY) or data), data)
    if begin < 0:
        raise ValueError(f"a column at {begin}")
    return ColumnChunk(b".".join(column[_PATH]).decode(), int(column[_CODEC]), begin, begin + packed)


def largest_page(name: str, file: BinaryIO, group: RowGroup, column: str) -> int:
    """Return the bytes of the largest unpacked page of a column in a row group.

    Raises:
        VideoError: a page unpacks to more than :data:`MAX_PAGE` and :data:`MAX_RATIO` times its size, or is damaged.
    """
    largest = 0
    for path, _, at, end in group.chunks:
        if path != column and not path.startswith(f"{column}."):
            continue
        while at < end:
            header, unpacked, packed = _read_header(name, file, at)
            if unpacked > max(MAX_PAGE, MAX_RATIO * packed):
                message = f"{name}: {packed} bytes of column {column} unpack to {unpacked >> 20} MiB"
                raise VideoError(message, kind="too_large", hint="write the file again without compression")
            largest = max(largest, unpacked)
            at += header + packed
    return largest


def _read_header(name: str, file: BinaryIO, at: int) -> tuple[int, int, int]:
    """Return the bytes of a page's header, of the page unpacked, and of the page as it is."""
    for size in (_HEADER, _MAX_HEADER):
        file.seek(at, os.SEEK_SET)
        reader = _CompactReader(file.read(size))
        try:
            fields = reader.struct(_PAGE)
            unpacked, packed = int(fields[_UNPACKED_BYTES]), int(fields[_PACKED_BYTES])
        except IndexError:
            continue
        except (KeyError, TypeError, ValueError):
            break
        if min(unpacked, packed) >= 0:
            return reader.at, unpacked, packed
        break
    raise VideoError(f"{name}: a page is damaged", kind="damaged", hint="copy or download it again")


class _CompactReader:
    """Reads a struct in Thrift's compact protocol. Raises IndexError if the bytes end before it or nest too deeply."""

    def __init__(self, content: bytes) -> None:
        self.at, self._content = 0, content

    def struct(self, wanted: _Fields, depth: int = 0) -> dict[int, Any]:
        """Return the wanted fields of the struct that begins here, and go behind it.

        Args:
            wanted: fields by number, those of a struct or of a list of structs with their own.
            depth: of nesting.
        """
        found: dict[int, Any] = {}
        field = 0
        while kind := self._byte():
            field = field + (kind >> 4) if kind >> 4 else self._integer()
            if kind & 15 in _BOOLEANS:  # the kind is the value
                continue
            if field in wanted:
                found[field] = self._value(kind & 15, wanted[field] or {}, depth)
            else:
                self._skip(kind & 15, depth)
        return found

    def _value(self, kind: int, wanted: _Fields, depth: int) -> Any:
        if depth > _DEPTH:
            raise IndexError
        if kind in _INTEGERS:
            return self._integer()
        if kind == _STRUCT:
            return self.struct(wanted, depth + 1)
        if kind in _LISTS:
            item, count = self._list()
            return [self._value(item, wanted, depth + 1) for _ in range(count)]
        if kind == _BINARY:
            return self._binary()
        raise IndexError  # no other kind is wanted

    def _list(self) -> tuple[int, int]:
        """Return the kind and the number of the items of the list that begins here."""
        head = self._byte()
        return head & 15, head >> 4 if head >> 4 < 15 else self._varint()

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _DEPTH:
            raise IndexError
        if kind in _INTEGERS:
            self._integer()
        elif kind == _BINARY:
            self._binary()
        elif kind == _STRUCT:
            self.struct({}, depth + 1)
        elif kind in _LISTS:
            item, count = self._list()
            for _ in range(count):
                self._skip(item, depth + 1)
        elif kind in (_BYTE, *_BOOLEANS):
            self.at += 1
        elif kind == _DOUBLE:
            self.at += 8
        else:  # a map, which neither headers nor footers have
            raise IndexError
        if self.at > len(self._content):
            raise IndexError

    def _binary(self) -> bytes:
        length = self._varint()
        self.at += length
        if self.at > len(self._content):
            raise IndexError
        return self._content[self.at - length : self.at]

    def _byte(self) -> int:
        self.at += 1
        return self._content[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise IndexError

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
