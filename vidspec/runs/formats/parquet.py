"""Records as Parquet: the keys of a line of ``--format jsonl`` as columns, typed by the record schema."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from vidspec.events.record import RecordDict
from vidspec.runs.formats.base import (
    SECOND_TEXTS,
    PartFormat,
    PartSummary,
    RequiredPackage,
    data_column,
    data_value,
    output_formats,
)
from vidspec.runs.schema import record_schema
from vidspec.runs.store.records import INPUT_KEYS, LEAN_KEYS, lean_record

if TYPE_CHECKING:
    from pyarrow import DataType, Schema

#: Metadata key that identifies our files.
_METADATA_KEY = b"vidspec"
#: Rows that are read at a time.
_BATCH = 1024


@output_formats.register("parquet")
class ParquetFormat(PartFormat):
    """One row per record, with a column for each text beside the caption and each property of answers in JSON.

    Its footer depends on all rows.
    """

    suffix = ".parquet"
    is_text = False
    requires = RequiredPackage("pyarrow", "pyarrow", "pip install pyarrow")

    def __init__(self, data: Mapping[str, object] | None = None, texts: Sequence[str] = ()) -> None:
        self.data, self.texts = data or {}, texts

    def content(self, records: Iterable[RecordDict]) -> bytes:
        """Return the file; equal records give equal bytes."""
        import pyarrow
        from pyarrow import parquet

        rows = [lean_record(record) for record in records]
        schema = _schema().with_metadata({_METADATA_KEY: PartSummary.of(rows).to_json()})
        for name in self.texts:
            schema = schema.append(pyarrow.field(name, _arrow_type(_known_keys()[name])))
        columns = {name: str(_to_utf8(data_column(name))) for name in self.data}
        for name, about in self.data.items():
            schema = schema.append(pyarrow.field(columns[name], _data_type(about)))
        for row in rows:  # these three may have any type
            row |= {columns[name]: _typed(data_value(row, name), about) for name, about in self.data.items()}
            row["id"] = None if row["id"] is None else str(row["id"])
            row["columns"] = json.dumps(row["columns"]) if row["columns"] else None
            row["data"] = None if row["data"] is None else json.dumps(row["data"])
        file = io.BytesIO()
        table = pyarrow.Table.from_pylist([_to_utf8(row) for row in rows], schema)
        parquet.write_table(table, file, compression="zstd")
        return file.getvalue()

    def read_summary(self, file: BinaryIO) -> PartSummary | None:
        import pyarrow
        from pyarrow import parquet

        try:
            metadata = (parquet.read_metadata(file).metadata or {}).get(_METADATA_KEY)
        except pyarrow.ArrowInvalid:
            return None
        return None if metadata is None else PartSummary.parse(metadata)

    def read_records(self, file: BinaryIO) -> Iterator[RecordDict]:
        from pyarrow import parquet

        for batch in parquet.ParquetFile(file).iter_batches(_BATCH):
            for found in batch.to_pylist():
                row = {key: found.get(key) for key in LEAN_KEYS}
                row |= {key: text for key in SECOND_TEXTS if (text := found.get(key)) is not None}
                row["data"] = json.loads(row["data"]) if row["data"] else None
                row["columns"] = json.loads(row["columns"]) if row["columns"] else None
                row["job"] = {key: value for key, value in row["job"].items() if value is not None}
                yield row


def _to_utf8(value: Any) -> Any:
    """Make the strings of a JSON value valid UTF-8: foreign bytes of a path become ``\\udcXX``, as in other formats."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _to_utf8(one) for key, one in value.items()}
    return [_to_utf8(one) for one in value] if isinstance(value, list | tuple) else value


@cache
def _known_keys() -> RecordDict:
    """Return the JSON Schemas of the keys of a record, those about its input included."""
    known = cast("RecordDict", record_schema()["properties"])
    of_job = known["job"]["properties"]
    own = {"type": "object", "properties": {key: one for key, one in of_job.items() if key not in INPUT_KEYS}}
    return {**known, **{key: of_job[key] for key in INPUT_KEYS}, "job": own}


@cache
def _schema() -> Schema:
    import pyarrow

    known = _known_keys()
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


def _data_type(about: object) -> DataType:
    """Return the Arrow type of a property's column; string, with JSON text, for all but plain values."""
    import pyarrow

    simple = {"integer": pyarrow.int64(), "number": pyarrow.float64(), "boolean": pyarrow.bool_()}
    return simple.get(_kind(about), pyarrow.string())


def _typed(value: object, about: object) -> object:
    """Return a property's value for its column; None for a number that the column cannot hold."""
    kind = _kind(about)
    if kind in ("integer", "number"):
        if not isinstance(value, int | float) or abs(value) >= 2**63:
            return None
        return int(value) if kind == "integer" else float(value)
    return value if kind == "boolean" or isinstance(value, str | None) else json.dumps(value, ensure_ascii=False)


def _kind(about: object) -> str:
    """Return the type that a JSON Schema names; empty for none or several."""
    kind = about.get("type") if isinstance(about, Mapping) else None
    return kind if isinstance(kind, str) else ""
