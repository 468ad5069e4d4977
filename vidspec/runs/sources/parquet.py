"""Clips in Parquet files: a row each, with its bytes or the path of a file.

Listing reads the columns of text, numbers, lists and structs; columns with bytes are read clip by clip.
"""

from __future__ import annotations

import json
import os
import posixpath
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from vidspec.bounds import LONGEST_PROMPT
from vidspec.errors import VideoError
from vidspec.runs.access import is_url
from vidspec.runs.allowance import Allowance, FetchLimits
from vidspec.runs.job import Job, MemberSource
from vidspec.runs.parquet_process import ParquetColumn, ParquetRow, RowsRequest, ValuesRequest, read_parquet
from vidspec.runs.sources.base import ListOptions, Source, sources
from vidspec.runs.stores import copy, open_url, retry

__all__ = ["ParquetSource"]

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
        if find_spec("pyarrow") is None:
            raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
        name, known = file.path, dict[str, object]()  # a long value of many rows is kept once
        request = RowsRequest(name, options.column, tuple(options.fields), LONGEST_PROMPT)
        with open_url(name, self.limits) as content, closing(read_parquet(request, content)) as answers:
            size = content.seek(0, os.SEEK_END)
            column, seen = next(answers), set[tuple[str | None, str | None]]()
            for number, row in enumerate(chain.from_iterable(answers)):
                if not column.holds_bytes and row.error is None:
                    if row.path is None or (row.path, row.id) in seen:
                        continue
                    seen.add((row.path, row.id))
                member = self._member(file, number, row, column, size)
                if member.error is None:
                    member.id = row.id
                    member.columns = {key: known.setdefault(json.dumps(one), one) for key, one in row.columns.items()}
                yield member

    def _member(self, file: Job, number: int, row: ParquetRow, column: ParquetColumn, size: int) -> Job:
        """Return the job of a row, with an error if it cannot be read, or names what it may not."""
        name, path = file.path, f"{file.path}/{number:05d}"
        try:
            if row.error is not None:
                raise VideoError(f"{path}: cannot be read: {row.error}", kind="damaged")
            if column.holds_bytes:
                return file.member(path, MemberSource(name, number, size, None, column.name, "parquet"))
            named = self.limits.access.locate(name, row.path or "")
            return file.member(named, MemberSource(named) if is_url(named) else None)
        except VideoError as error:
            return file.member(path, MemberSource(name, kind="parquet"), error)

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


def _iter_column(url: str, column: str, row: int, limits: FetchLimits) -> Generator[bytes | str | None, None, None]:
    """Yield the bytes of a column from a row on, or the paths of rows without."""
    allowance = Allowance(url, limits)
    with open_url(url, limits, allowance) as file, closing(read_parquet(ValuesRequest(url, column, row), file)) as rows:
        for value in rows:
            yield from value
            allowance.renew()  # limits hold per row
