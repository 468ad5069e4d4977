"""How records look when they are written: lines for one file or a terminal, documents for a file per clip. Pure.

SRT and VTT are made by the libraries ``srt`` and ``webvtt-py``. A record is a dictionary as ``Caption.to_dict`` makes
it, with the ``job`` that ``vidspec.batch.records`` adds.
"""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, get_args

__all__ = ["CSV_COLUMNS", "FORMATS", "SUFFIXES", "Format", "clock", "document", "header", "line", "span"]

Format = Literal["text", "txt", "json", "jsonl", "csv", "srt", "vtt", "webdataset-txt"]
FORMATS: tuple[Format, ...] = get_args(Format)
#: Of the file that one clip gets.
SUFFIXES: Mapping[str, str] = {
    "text": ".txt",
    "txt": ".txt",
    "json": ".json",
    "srt": ".srt",
    "vtt": ".vtt",
    "webdataset-txt": ".txt",
}
CSV_COLUMNS = (
    "path",
    "start",
    "end",
    "caption",
    "profile",
    "target",
    "draft",
    "lossless",
    "demo",
    "tokens",
    "error_stage",
    "error_kind",
    "error_message",
    "settings",
)

#: The comment of a WebVTT file. SRT has none: whatever stands in it may be shown.
DEMO = "Captions of vidspec's built-in models, which know drawn shapes only."

Record = Mapping[str, Any]


def header(form: Format) -> str | None:
    """The first line of a file of records, without its end; only CSV has one."""
    return ",".join(CSV_COLUMNS) if form == "csv" else None


def line(record: Record, form: Format, *, several: bool) -> str | None:
    """One record of several as it is written, without the final newline; None if nothing is (a failed clip as text).

    As text one clip gives its bare caption; each of several gives one line, the path, a tab and the caption, whose
    line breaks become spaces; a segment's times come before its caption. As JSON every clip, failed or not, gives one
    object on one line, and as CSV one row.
    """
    if form in ("json", "jsonl"):
        return json.dumps(record, ensure_ascii=False, allow_nan=False)
    if form == "csv":
        return _row(record)
    if record["caption"] is None:
        return None
    if form == "webdataset-txt":
        return _flat(record["caption"])
    timed = f"{_interval(record)}\t" if _segment(record) is not None else ""
    if several:
        return f"{record['path']}\t{timed}{_flat(record['caption'])}"
    return f"{timed}{_flat(record['caption'])}" if timed else str(record["caption"])


def document(records: Sequence[Record], form: Format) -> str | None:
    """All records of one clip, in the order of its segments, as one file's content; None if it has no caption."""
    captioned = [record for record in records if record["caption"] is not None]
    if not captioned:
        return None
    if form == "json":
        whole: Any = dict(records[0]) if _segment(records[0]) is None else [dict(record) for record in records]
        return json.dumps(whole, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    if form == "srt":
        return _srt(captioned)
    if form == "vtt":
        return _vtt(captioned)
    if form == "webdataset-txt":
        return " ".join(_flat(record["caption"]) for record in captioned) + "\n"
    lines = (line(record, form, several=False) for record in records)
    first = header(form)
    return "".join(f"{one}\n" for one in ([first] if first else []) + [one for one in lines if one is not None])


def span(record: Record) -> tuple[float, float]:
    """From where to where the caption is about, in seconds of the video."""
    part = {**record, **(record.get("job") or {})}  # a lean record has its times beside the job
    start = float(part.get("start") or 0.0)
    duration = record.get("video", {}).get("duration_s")
    end = part.get("end")
    if end is None or (duration is not None and duration > start):
        end = min(duration, end) if end is not None else duration
    return start, float(end if end is not None else start)


def clock(seconds: float) -> str:
    """``hh:mm:ss.mmm``."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}.{rest % 1000:03d}"


def _segment(record: Record) -> int | None:
    number: int | None = (record.get("job") or {}).get("segment")
    return number


def _interval(record: Record) -> str:
    return "-".join(clock(moment) for moment in span(record))


def _flat(caption: str) -> str:
    return " ".join(caption.split())


def _row(record: Record) -> str:
    start, end = span(record) if record["error"] is None else (None, None)
    error = record["error"] or {}
    values = {
        "path": record["path"],
        "start": start,
        "end": end,
        "caption": record["caption"],
        "profile": record["profile"],
        "target": record["models"].get("target"),
        "draft": record["models"].get("draft"),
        "lossless": record["lossless"],
        "demo": record.get("demo"),
        "tokens": len(record["token_ids"]) if record["caption"] is not None else None,
        "settings": (record.get("job") or {}).get("settings"),
        **{f"error_{key}": error.get(key) for key in ("stage", "kind", "message")},
    }
    buffer = io.StringIO()
    # Line breaks inside a value are quoted only if they are among those of the terminator.
    csv.writer(buffer, lineterminator="\r\n").writerow(values[column] for column in CSV_COLUMNS)
    return buffer.getvalue().removesuffix("\r\n")


def _srt(records: Sequence[Record]) -> str:
    import srt  # type: ignore[import-untyped]

    cues = []
    for number, record in enumerate(records, start=1):
        start, end = (timedelta(milliseconds=round(moment * 1000)) for moment in span(record))
        cues.append(srt.Subtitle(number, start, end, _flat(record["caption"])))
    return str(srt.compose(cues, reindex=False))


def _vtt(records: Sequence[Record]) -> str:
    import webvtt

    file = webvtt.WebVTT()
    if any(record.get("demo") for record in records):
        file.header_comments.append(DEMO)
    for record in records:
        start, end = (clock(moment) for moment in span(record))
        # "<", "&" and "-->" mean something to a player.
        file.captions.append(webvtt.Caption(start, end, html.escape(_flat(record["caption"]), quote=False)))
    return str(file.content) + "\n"
