"""Records as Parquet: the keys of a line of ``--format jsonl`` as columns, typed by the record schema."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from vidspec.dataset.formats.base import RequiredPackage, RunFormat, output_formats
from vidspec.dataset.records import INPUT_KEYS, LEAN_KEYS, lean_record
from vidspec.dataset.schema import record_schema
from vidspec.dataset.stores import open_url, retry
from vidspec.errors import UsageError
from vidspec.events.record import RecordDict

if TYPE_CHECKING:
    from pyarrow import DataType, Schema

__all__ = ["ParquetFormat", "PartSummary", "parquet_bytes", "read_part_summary", "records_of"]

#: Metadata key that identifies our files.
_METADATA_KEY = b"vidspec"


@output_formats.register("parquet")
class ParquetFormat(RunFormat):
    """One row per record. Its footer depends on all rows."""

    suffix = ".parquet"
    is_text = False
    requires = RequiredPackage("pyarrow", "pyarrow", "pip install 'vidspec[data]'")

    def content(self, records: Iterable[RecordDict]) -> bytes:
        return parquet_bytes(records)


class PartSummary(NamedTuple):
    """Summary in a finished file: number of clips, number of failed clips, and their settings."""

    clips: int
    failed: int
    settings: tuple[str, ...]


def parquet_bytes(records: Iterable[RecordDict]) -> bytes:
    """Return records as the content of a Parquet file; equal records give equal bytes."""
    import pyarrow
    from pyarrow import parquet

    rows = [lean_record(record) for record in records]
    failed = {row["job"]["clip"] for row in rows if row["error"] is not None}
    settings = sorted({row["job"]["settings"] for row in rows})
    summary = {"clips": len({row["job"]["clip"] for row in rows}), "failed": len(failed), "settings": settings}
    for row in rows:  # these two may have any type
        row["id"] = None if row["id"] is None else str(row["id"])
        row["columns"] = json.dumps(row["columns"]) if row["columns"] else None
    table = pyarrow.Table.from_pylist(
        [_to_utf8(row) for row in rows], _schema().with_metadata({_METADATA_KEY: json.dumps(summary)})
    )
    file = io.BytesIO()
    parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


def _to_utf8(value: Any) -> Any:
    """Make the strings of a JSON value valid UTF-8: foreign bytes of a path become ``\\udcXX``, as in other formats."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _to_utf8(one) for key, one in value.items()}
    return [_to_utf8(one) for one in value] if isinstance(value, list | tuple) else value


def read_part_summary(name: str) -> PartSummary:
    """Read the summary of a file.

    Raises:
        UsageError: it is not one of our files.
        VideoError: it cannot be read.
    """
    import pyarrow
    from pyarrow import parquet

    def read() -> PartSummary:
        with open_url(name) as file:
            try:
                metadata = (parquet.read_metadata(file).metadata or {}).get(_METADATA_KEY)
            except pyarrow.ArrowInvalid:
                metadata = None
        if metadata is None:
            raise UsageError(f"{name}: is there already, and holds no captions", hint="name another --output-dir")
        summary = json.loads(metadata)
        return PartSummary(summary["clips"], summary["failed"], tuple(summary["settings"]))

    return retry(name, read)


def records_of(name: str) -> list[RecordDict]:
    """Read the records of one of our files, as they were written.

    Raises:
        VideoError: it cannot be read.
    """
    from pyarrow import parquet

    def read() -> list[RecordDict]:
        with open_url(name) as file:
            return cast("list[RecordDict]", parquet.read_table(file).to_pylist())

    rows = retry(name, read)
    for row in rows:
        row["columns"] = json.loads(row["columns"]) if row["columns"] else None
        row["job"] = {key: value for key, value in row["job"].items() if value is not None}
    return rows


@cache
def _schema() -> Schema:
    import pyarrow

    known = cast("RecordDict", record_schema()["properties"])
    of_job = known["job"]["properties"]
    own = {"type": "object", "properties": {key: one for key, one in of_job.items() if key not in INPUT_KEYS}}
    known = {**known, **{key: of_job[key] for key in INPUT_KEYS}, "job": own}
    return pyarrow.schema([(key, _arrow_type(known[key])) for key in LEAN_KEYS])


def _arrow_type(about: RecordDict) -> DataType:
    """Return the Arrow type of a JSON schema; string for values without a fixed type."""
    import pyarrow

    about = next((one for one in about.get("oneOf", ()) if one.get("type") != "null"), about)
    kinds = about.get("type")
    kind = "boolean" if about.get("const") is True else kinds if isinstance(kinds, str) else (kinds or ["string"])[0]
    if kind == "array":
        return pyarrow.list_(_arrow_type(about["items"]))
    if kind == "object" and about.get("properties"):
        return pyarrow.struct([(key, _arrow_type(one)) for key, one in about["properties"].items()])
    simple = {"integer": pyarrow.int64(), "number": pyarrow.float64(), "boolean": pyarrow.bool_()}
    return simple.get(kind, pyarrow.string())
