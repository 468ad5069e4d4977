"""Manifests: JSON, JSONL or CSV lists of clips, each with an optional prompt, time range and id. Opens no clip."""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import cast

from vidspec.config.values import parse_time
from vidspec.errors import UsageError
from vidspec.files import read_text
from vidspec.runs.job import Job, JobQuestions
from vidspec.runs.sources.base import ListOptions, Source, clip_suffix, sources
from vidspec.runs.sources.frames import frame_folder
from vidspec.runs.sources.openai_batch import BatchSource, is_batch
from vidspec.runs.stores import join_url

__all__ = ["MAX_LIST_BYTES", "PATH_KEYS", "ManifestSource", "list_name", "parse_manifest"]

#: Maximum bytes of a list or a manifest: some ten million clips.
MAX_LIST_BYTES = 1 << 30
#: Names of the column of paths: also those of Hugging Face's folders, LTX's trainer and musubi-tuner.
PATH_KEYS = ("path", "video", "file", "filename", "file_name", "media_path", "video_path", "image_path")
OWN_KEYS = ("prompt", "turns", "start", "end", "id")


@sources.register("manifests")
class ManifestSource(Source):
    """Rows of a manifest; ``-`` is standard input."""

    suffixes = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
    is_shard = False

    def list(self, file: Job, options: ListOptions) -> Iterable[Job]:
        if is_batch(file.path):
            return BatchSource(self.limits).list(file, options)
        name = list_name(file.path)
        return parse_manifest(read_text(file.path, MAX_LIST_BYTES, name, pipe=True), name, os.path.dirname(file.path))


def list_name(path: str) -> str:
    """Return the name of a list for messages."""
    return "standard input" if path == "-" else path


def parse_manifest(text: str, name: str, folder: str) -> Iterator[Job]:
    """Yield the clips of a manifest.

    Args:
        text: its content: JSONL if it begins with ``{``, a JSON list with ``[``, otherwise CSV (or TSV) with a header.
        name: name for error messages.
        folder: base of relative paths.

    Each row has ``path`` (or another of :data:`PATH_KEYS`) and may have ``prompt``, ``start`` and ``end``
    (seconds, or ``[hh:]mm:ss``) and ``id`` (text or a whole number). In JSON the prompt may be a list of independent
    prompts, or replaced by ``turns``, the turns of a dialogue. Other keys become the job's ``columns``. A path may be a
    ``file://`` URI, or a folder of numbered frames (:mod:`vidspec.runs.sources.frames`).

    Raises:
        UsageError: naming the line.
    """
    rows = {"{": _json_rows, "[": _json_list}.get(text.lstrip()[:1], _csv_rows)(text, name)
    for where, row in rows:
        named = next((key for key in PATH_KEYS if row.get(key)), "path")
        path = row.get(named)
        if not isinstance(path, str):
            raise UsageError(f"{where}: has no path", hint="a key or column path names the clip")
        prompt, questions = _parse_prompt(row, where)
        texts = questions.texts if questions else ()
        if not (_is_encodable(path, "surrogateescape") and all(map(_is_encodable, (prompt or "", *texts)))):
            raise UsageError(f"{where}: holds a NUL or half of a surrogate pair", hint="remove that character")
        start, end = (parse_time(row.get(key), f"{where}: {key}") for key in ("start", "end"))
        if end is not None and end <= (start or 0.0):
            raise UsageError(f"{where}: end {end:g} must be after start {start or 0.0:g}")
        identity = row.get("id")
        if isinstance(identity, bool) or not isinstance(identity, str | int | None):
            raise UsageError(f"{where}: the id must be text or a whole number")
        columns = {key: value for key, value in row.items() if key not in (named, *OWN_KEYS) and value is not None}
        try:
            json.dumps(columns, allow_nan=False)
        except ValueError:
            raise UsageError(f"{where}: not JSON: a number must be finite") from None
        except RecursionError:
            raise UsageError(f"{where}: not JSON that can be kept: too deep") from None
        try:
            path = join_url(folder, path)
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from None
        yield Job(
            path,
            source=None if clip_suffix(path) else frame_folder(path, row.get("fps"), where),
            root=folder or ".",
            start=start,
            end=end,
            prompt=prompt or None,
            questions=questions,
            id=None if identity == "" else identity,
            columns=columns,
        )


def _is_encodable(text: str, errors: str = "strict") -> bool:
    """Return True if ``text`` is encodable as UTF-8 (file names with ``surrogateescape``) and has no NUL."""
    try:
        return b"\0" not in text.encode("utf-8", errors)
    except UnicodeEncodeError:
        return False


def _parse_prompt(row: Mapping[str, object], where: str) -> tuple[str | None, JobQuestions | None]:
    """Return the prompt of a row, or its several questions."""
    prompt, turns = row.get("prompt"), row.get("turns")
    if turns is not None and prompt:
        raise UsageError(f"{where}: prompt and turns exclude each other")
    if turns is None and (prompt is None or isinstance(prompt, str)):
        return prompt or None, None
    name, texts = ("prompt", prompt) if turns is None else ("turns", turns)
    if not (isinstance(texts, list) and texts and all(isinstance(one, str) and one.strip() for one in texts)):
        kind = "text or a list of texts" if turns is None else "a list of texts"
        raise UsageError(
            f"{where}: {name} must be {kind}", hint=f'write it like {{"path": "a.mp4", "{name}": ["...", "..."]}}'
        )
    if turns is None and len(set(texts)) < len(texts):
        raise UsageError(f"{where}: prompt: the same is asked twice")
    if turns is None and len(texts) == 1:
        return texts[0], None
    return None, JobQuestions(tuple(texts), turns is not None)


_Rows = Iterator[tuple[str, Mapping[str, object]]]  # each with its place, for messages


def _json_rows(text: str, name: str) -> _Rows:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _json_row(_parse_json(line, f"{name}, line {number}"), f"{name}, line {number}")


def _json_list(text: str, name: str) -> _Rows:
    for number, row in enumerate(cast("list[object]", _parse_json(text, name)), start=1):
        yield _json_row(row, f"{name}, entry {number}")


def _json_row(row: object, where: str) -> tuple[str, Mapping[str, object]]:
    if not isinstance(row, dict):
        raise UsageError(f"{where}: must be an object with a path")
    return where, row


def _parse_json(text: str, where: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=partial(_object_without_repeats, where=where))
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}") from None


def _object_without_repeats(pairs: list[tuple[str, object]], where: str) -> dict[str, object]:
    """Build a JSON object, rejecting repeated keys."""
    row: dict[str, object] = {}
    for key, value in pairs:
        if key in row:
            raise UsageError(f"{where}: {key}: is set twice")
        row[key] = value
    return row


def _csv_rows(text: str, name: str) -> _Rows:
    header = text.split("\n", 1)[0]
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if "\t" in header else ",", strict=True)
    try:
        columns = [str(column) for column in reader.fieldnames or ()]
    except csv.Error as error:
        raise UsageError(f"{name}, line 1: not CSV: {error}") from None
    names = {column: column.strip() for column in columns}
    names |= {column: name.lower() for column, name in names.items() if name.lower() in (*PATH_KEYS, *OWN_KEYS)}
    given = Counter(names[column] for column in columns)
    if twice := next((column for column, times in given.items() if column and times > 1), None):
        raise UsageError(f"{name}, line 1: {twice}: is set twice")
    if set(names.values()).isdisjoint(PATH_KEYS):
        raise UsageError(f"{name}: must be lines or a list of JSON objects, or name the columns first, path among them")
    try:
        for row in reader:
            if any(cast("dict[str | None, list[str]]", row).get(None, ())):
                message = f"{name}, line {reader.line_num}: has more cells than the first line has columns"
                raise UsageError(message, hint="quote a text that contains the separator")
            yield f"{name}, line {reader.line_num}", {names[key]: value for key, value in row.items() if key}
    except csv.Error as error:
        raise UsageError(f"{name}, line {reader.line_num}: not CSV: {error}") from None
