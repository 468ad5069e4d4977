"""Text formats of records: lines for one file or a terminal, documents for a file per clip. Pure.

The libraries ``srt`` and ``webvtt-py`` write SRT and VTT. A record is a dictionary from ``Caption.to_dict`` with the
``job`` that ``vidspec.dataset.records`` adds.
"""

from __future__ import annotations

import csv
import io
import os
import textwrap
from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import accumulate
from typing import Literal, get_args

from vidspec.escaping import cell, cue, escape_text, json_text, one_line
from vidspec.events.record import RecordDict

__all__ = [
    "CSV_COLUMNS",
    "FORMATS",
    "MARK",
    "SUBTITLES",
    "SUFFIXES",
    "Format",
    "clip_document",
    "clock",
    "file_content",
    "format_of",
    "header_line",
    "record_line",
    "subtitle_cues",
    "time_range",
]

Format = Literal["text", "txt", "json", "jsonl", "csv", "srt", "vtt", "webdataset-txt", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)
#: File suffix of each format.
SUFFIXES = {form: ".txt" if form in ("text", "webdataset-txt") else f".{form}" for form in FORMATS}
#: Formats in which all captions of a clip form one document.
SUBTITLES = ("srt", "vtt")
CSV_COLUMNS = (
    "path",
    "id",
    "start",
    "end",
    "caption",
    "profile",
    "target",
    "draft",
    "lossless",
    "demo",
    "tokens",
    "ended",
    "error_stage",
    "error_kind",
    "error_message",
    "settings",
    "prompt",
)
#: Columns whose values may have several lines; names, messages and paths have one.
_PROSE = ("caption", "prompt")

#: Maximum lines of a subtitle, and characters per line.
LINES, WIDTH = 2, 42
#: Comment in a WebVTT file. SRT has no comments: players may show all of its text.
DEMO = "Captions of vidspec's built-in models, which know drawn shapes only."
#: Prefix of such a caption in formats without comments, unless the user named these models.
MARK = "[demo] "


def format_of(path: str) -> Format | None:
    """Return the format of a file by its suffix; None if unknown."""
    suffix = os.path.splitext(path)[1].lower()
    return next((form for form in FORMATS if SUFFIXES[form] == suffix), None)


def header_line(form: Format) -> str | None:
    """Return the header line of a file of records without its newline; None except for CSV."""
    return ",".join(CSV_COLUMNS) if form == "csv" else None


def record_line(record: RecordDict, form: Format, *, several: bool, raw_csv: bool = False) -> str | None:
    """Return one record as written, without the final newline; None if it has no text (a failed clip as text).

    As text, a single clip gives its bare caption. With ``several``, each clip gives one line: path, tab and caption,
    with spaces for line breaks. A segment's times come before its caption; each answer to several questions is a line.
    As JSON, every clip, failed or not, gives one object on one line. As CSV it gives one row, with cells guarded
    against formulas unless ``raw_csv``. Captions of built-in models that the user did not name are marked in text.
    Control characters are escaped (``vidspec.escaping``).
    """
    if form in ("json", "jsonl"):
        return json_text(record)
    if form == "csv":
        return _csv_row(record, raw_csv)
    if record["caption"] is None:
        return None
    if form == "webdataset-txt":
        return _one_line_caption(_marked_caption(record))
    part = _segment(record) is not None
    timed = f"{_interval(record)}\t" if part and not record.get("question") else ""
    if several:
        return f"{one_line(record['path'])}\t{timed}{_one_line_caption(_marked_caption(record))}"
    return f"{timed}{_one_line_caption(_marked_caption(record))}" if part else escape_text(_marked_caption(record))


def clip_document(records: Sequence[RecordDict], form: Format) -> str | None:
    """Return all records of one clip, in segment order, as a file's content; None if no record has a caption."""
    captioned = [record for record in records if record["caption"] is not None]
    if not captioned:
        return None
    if form == "json":
        return json_text(records[0] if _segment(records[0]) is None else list(records), indent=1) + "\n"
    if form == "srt":
        return _srt(captioned)
    if form == "vtt":
        return _vtt(captioned)
    if form == "webdataset-txt":
        return " ".join(_one_line_caption(_marked_caption(record)) for record in captioned) + "\n"
    return file_content(records, form, several=False)


def file_content(records: Iterable[RecordDict], form: Format, *, several: bool, raw_csv: bool = False) -> str:
    """Return records as the content of one file: header and lines, or one document of subtitles."""
    if form in SUBTITLES:
        return clip_document(list(records), form) or ""
    lines = (record_line(record, form, several=several, raw_csv=raw_csv) for record in records)
    return "".join(f"{one}\n" for one in (header_line(form), *lines) if one is not None)


def _flat_record(record: RecordDict) -> RecordDict:
    """Return the record with the keys of its job at the top level, where a lean record has some of them."""
    return {**record, **(record.get("job") or {})}


def time_range(record: RecordDict) -> tuple[float, float]:
    """Return start and end of the captioned part, in seconds of the video."""
    part = _flat_record(record)
    start = float(part.get("start") or 0.0)
    duration = record.get("video", {}).get("duration_s")
    end = part.get("end")
    if end is None or (duration is not None and duration > start):
        end = min(duration, end) if end is not None else duration
    return start, float(end if end is not None else start)


def clock(seconds: float) -> str:
    """Format seconds as ``hh:mm:ss.mmm``."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}.{rest % 1000:03d}"


def _segment(record: RecordDict) -> int | None:
    number: int | None = (record.get("job") or {}).get("segment")
    return number


def _interval(record: RecordDict) -> str:
    return "-".join(clock(moment) for moment in time_range(record))


def _marked_caption(record: RecordDict) -> str:
    """Return the caption, with :data:`MARK` if built-in models wrote it and the user did not name them."""
    unnamed = record.get("demo") and not (record.get("job") or {}).get("models_named")
    return f"{MARK if unnamed else ''}{record['caption']}"


def _one_line_caption(caption: str) -> str:
    return one_line(" ".join(caption.split()))


def _csv_row(record: RecordDict, raw: bool) -> str:
    start, end = time_range(record) if record["error"] is None else (None, None)
    error = record["error"] or {}
    values = {
        "path": record["path"],
        "id": _flat_record(record).get("id"),
        "start": start,
        "end": end,
        "caption": record["caption"],
        "profile": record["profile"],
        "target": record["models"].get("target"),
        "draft": record["models"].get("draft"),
        "lossless": record["lossless"],
        "demo": record.get("demo"),
        "tokens": len(record["token_ids"]) if record["caption"] is not None else None,
        "ended": record.get("ended"),
        "settings": (record.get("job") or {}).get("settings"),
        "prompt": _flat_record(record).get("prompt"),
        **{f"error_{key}": error.get(key) for key in ("stage", "kind", "message")},
    }
    buffer = io.StringIO()
    # Line breaks inside a value are quoted only if they are among those of the terminator.
    csv.writer(buffer, lineterminator="\r\n").writerow(
        cell(value, raw=raw, lines=column in _PROSE) if isinstance(value := values[column], str) else value
        for column in CSV_COLUMNS
    )
    return buffer.getvalue().removesuffix("\r\n")


def subtitle_cues(record: RecordDict, text: str | None = None) -> list[tuple[int, int, str]]:
    """Split a caption, or its marked ``text``, into cues of two lines of 42 characters.

    Returns:
        start and end in milliseconds and the text with its line break. Cues are contiguous, and each lasts for its
        share of the text. A caption of unknown time, or too short for its cues, stays one cue.
    """
    start, end = (round(moment * 1000) for moment in time_range(record))
    lines = textwrap.wrap(_one_line_caption(record["caption"] if text is None else text), WIDTH, break_on_hyphens=False)
    parts = ["\n".join(lines[at : at + LINES]) for at in range(0, len(lines), LINES)]
    if end - start < len(parts):
        return [(start, end, "\n".join(lines))]
    ends = [start + round((end - start) * length / sum(map(len, parts))) for length in accumulate(map(len, parts))]
    return list(zip([start, *ends], ends, parts, strict=False))


def _escape_cue(text: str) -> str:
    """Escape the lines of a cue of :func:`subtitle_cues`, after wrapping."""
    return "\n".join(cue(one) for one in text.split("\n"))


def _srt(records: Sequence[RecordDict]) -> str:
    import srt  # type: ignore[import-untyped]

    times = (
        (timedelta(milliseconds=start), timedelta(milliseconds=end), _escape_cue(text))
        for record in records
        for start, end, text in subtitle_cues(record, _marked_caption(record))
    )
    return str(srt.compose([srt.Subtitle(number, *one) for number, one in enumerate(times, start=1)], reindex=False))


def _vtt(records: Sequence[RecordDict]) -> str:
    import webvtt

    file = webvtt.WebVTT()
    if any(record.get("demo") for record in records):
        file.header_comments.append(DEMO)
    for start, end, text in (one for record in records for one in subtitle_cues(record)):
        file.captions.append(webvtt.Caption(clock(start / 1000), clock(end / 1000), _escape_cue(text)))
    return str(file.content) + "\n"
