"""Sizes of the pages of a Parquet file, by their headers: a page of kilobytes may unpack to gigabytes. Unpacks none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO

from vidspec.errors import VideoError

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

__all__ = ["MAX_PAGE", "largest_page"]

#: Bytes of an unpacked page that any file may have, and the ratio to its packed bytes that a larger one may have. Video
#: does not shrink, so that honest pages of any size stay far below.
MAX_PAGE, MAX_RATIO = 256 << 20, 16
#: Bytes read for a page's header at first, and at most.
_HEADER, _MAX_HEADER = 1 << 13, 1 << 24
#: Numbers of types in Thrift's compact protocol.
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12


def largest_page(name: str, file: BinaryIO, metadata: FileMetaData, group: int, column: str) -> int:
    """Return the bytes of the largest unpacked page of a column in a row group.

    Raises:
        VideoError: a page unpacks to more than :data:`MAX_PAGE` and :data:`MAX_RATIO` times its size, or is damaged.
    """
    chunks = (metadata.row_group(group).column(one) for one in range(metadata.num_columns))
    largest = 0
    for chunk in (
        one for one in chunks if (one.path_in_schema == column or one.path_in_schema.startswith(f"{column}."))
    ):
        first = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
        at = min(first or chunk.data_page_offset, chunk.data_page_offset)
        end = at + chunk.total_compressed_size
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
            fields = reader.integers()
        except IndexError:
            continue
        if min(unpacked := fields.get(2, -1), packed := fields.get(3, -1)) >= 0:
            return reader.at, unpacked, packed
        break
    raise VideoError(f"{name}: a page is damaged", kind="damaged", hint="copy or download it again")


class _CompactReader:
    """Reads a struct in Thrift's compact protocol. Raises IndexError if the bytes end before it or nest too deeply."""

    def __init__(self, content: bytes) -> None:
        self.at, self._content = 0, content

    def integers(self, depth: int = 0) -> dict[int, int]:
        """Return the integers of the struct that begins here, by field, and go behind it."""
        found: dict[int, int] = {}
        field = 0
        while kind := self._byte():
            field = field + (kind >> 4) if kind >> 4 else self._integer()
            if kind & 15 in _INTEGERS:
                found[field] = self._integer()
            elif kind & 15 not in _BOOLEANS:  # whose value is the kind
                self._skip(kind & 15, depth)
        return found

    def _skip(self, kind: int, depth: int) -> None:
        if depth > 8:
            raise IndexError
        if kind in _INTEGERS:
            self._integer()
        elif kind == _BINARY:
            length = self._varint()
            self.at += length
        elif kind == _STRUCT:
            self.integers(depth + 1)
        elif kind in _LISTS:
            head = self._byte()
            for _ in range(head >> 4 if head >> 4 < 15 else self._varint()):
                self._skip(head & 15, depth + 1)
        elif kind in (_BYTE, *_BOOLEANS):
            self.at += 1
        elif kind == _DOUBLE:
            self.at += 8
        else:  # a map, which no header has
            raise IndexError
        if self.at > len(self._content):
            raise IndexError

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
