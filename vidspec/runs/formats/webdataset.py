"""Captions as a WebDataset: a tar with ``KEY.txt`` and ``KEY.json`` for each captioned clip."""

from __future__ import annotations

import io
import json
import posixpath
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import BinaryIO

from vidspec.errors import UsageError
from vidspec.escaping import json_text
from vidspec.events.record import RecordDict
from vidspec.files import encode_line
from vidspec.runs.formats.base import (
    MARK,
    PartFormat,
    PartSummary,
    flat_record,
    make_format,
    output_formats,
)
from vidspec.runs.store.records import lean_record

#: Beginning of the tar's global comment, which the summary follows.
_COMMENT = "vidspec "


@output_formats.register("webdataset")
class WebDatasetTarFormat(PartFormat):
    """A sample for each clip with a caption, with the key of its sample if it came from a WebDataset.

    ``KEY.txt`` is that of ``webdataset-txt``; ``KEY.json`` the clip's line of ``jsonl``, several as a list.
    """

    suffix = ".tar"
    is_text = False

    def content(self, records: Iterable[RecordDict]) -> bytes:
        lines = [lean_record(record) for record in records]
        samples: dict[str, list[RecordDict]] = {}
        keys: dict[str, str] = {}  # by clip
        for record in lines:
            if record["caption"] is not None:
                clip = record["job"]["clip"]
                keys[clip] = keys.get(clip) or _free_key(record, samples)
                samples.setdefault(keys[clip], []).append(record)
        file = io.BytesIO()
        comment = {"comment": _COMMENT + PartSummary.of(lines).to_json()}
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, pax_headers=comment) as tar:
            for key, found in samples.items():
                whole = json_text(found[0] if len(found) == 1 else found) + "\n"
                for name, text in ((f"{key}.txt", _caption_text(found)), (f"{key}.json", whole)):
                    content = encode_line(text)
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        return file.getvalue()

    def read_summary(self, file: BinaryIO) -> PartSummary | None:
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                comment = tar.pax_headers.get("comment", "")
            return PartSummary.parse(comment.removeprefix(_COMMENT))
        except (tarfile.TarError, ValueError, LookupError, TypeError):
            return None

    def read_records(self, file: BinaryIO) -> Iterator[RecordDict]:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            tar_files = (member for member in tar if member.isfile())
            for key, members in groupby(tar_files, lambda member: posixpath.splitext(member.name)[0]):
                contents: dict[str, str] = {}
                for member in members:
                    if (content := tar.extractfile(member)) is not None:
                        contents[posixpath.splitext(member.name)[1]] = content.read().decode("utf-8", "replace")
                if ".json" in contents:
                    yield from _as_shown(_parse_records(f"{key}.json", contents[".json"]), contents.get(".txt"))


def _as_shown(records: list[RecordDict], text: str | None) -> list[RecordDict]:
    """Return a clip's records with the captions of its ``KEY.txt``, which counts where it was edited."""
    if text is None or text == _caption_text(records):
        return records
    edited = [text.strip().removeprefix(MARK), *[""] * (len(records) - 1)]
    return [record | {"caption": one} for record, one in zip(records, edited, strict=True)]


def _parse_records(name: str, text: str) -> list[RecordDict]:
    """Parse a ``KEY.json``.

    Raises:
        UsageError: it was edited and is no list of records any more.
    """
    try:
        value = json.loads(text)
        records: list[RecordDict] = value if isinstance(value, list) else [value]
        if all({"job", "error", "caption"} <= one.keys() for one in records):
            return records
    except (ValueError, AttributeError):
        pass
    raise UsageError(f"{name}: holds no records any more", hint="move this file away to caption its shard again")


def _caption_text(records: Sequence[RecordDict]) -> str:
    return make_format("webdataset-txt").document([one for one in records if one["caption"]]) or "\n"


def _free_key(record: RecordDict, taken: Iterable[str]) -> str:
    """Return the key of a clip: its ``id`` or its path, without what follows the first dot of its name."""
    flat = flat_record(record)
    named = str(flat["id"]) if flat.get("id") is not None else posixpath.splitext(str(record["path"]))[0]
    *folders, name = [part for part in named.split("/") if part not in ("", ".", "..")] or ["_"]
    key = "/".join([*folders, name.replace(".", "_")])
    while key in taken:
        key += "_"
    return key
