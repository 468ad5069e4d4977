"""The contract of output formats, their registry, and what several of them need of a record.

A format renders records and opens no file. A record is a dictionary from ``Caption.to_dict`` with the ``job`` that
``vidspec.runs.store.records`` adds.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import BinaryIO, ClassVar, Literal, NamedTuple, TypeAlias

from vidspec.errors import UsageError, option
from vidspec.escaping import json_text, one_line
from vidspec.events.record import RecordDict
from vidspec.files import FileKind, encode_line
from vidspec.registry import Registry, build_part

#: Format where none is named; of clips in shards, if each shard gets a file of its own.
DEFAULT_FORMAT, SHARD_FORMAT = "text", "parquet"
#: Keys of a record whose texts stand beside the caption, in tables of runs that have them.
SECOND_TEXTS = ("original", "summary")
#: Prefix of a built-in model's caption in formats without comments, unless the user named these models.
MARK = "[demo] "


#: When each clip gets a file of its own.
ClipFileRule: TypeAlias = Literal["always", "in_folder", "never"]


class RequiredPackage(NamedTuple):
    """An optional package: its name, its module, and the command that installs it."""

    name: str
    module: str
    install: str


class OutputFormat(ABC):
    """Base of :class:`LineFormat`, :class:`ClipFormat` and :class:`RunFormat`, and through it :class:`ListFormat`.

    The constructor's parameters are facts of the run: ``several``, True if a file holds several clips, ``data``, the
    JSON Schemas of the properties of its answers, by name, ``texts``, those of :data:`SECOND_TEXTS` that its records
    have, and ``folder``, that of a file for all clips.

    Attributes:
        name: the registered name.
        suffix: suffix of its files.
        clip_files: when each clip gets a file of its own: ``always`` unless ``--output`` names one file, only
            ``in_folder``, with ``--output-dir`` or ``--name``, or ``never``.
        update: how one file for all clips follows a new record: ``append`` a line, ``rewrite`` it, or write it once at
            the ``end`` of the run.
        one_clip: True if a file holds one clip and one answer about it.
        holds: a clip's file is its caption as text, or as cues of subtitles, and nothing else; None for other files.
        clip_name: template of the name of a clip's file.
        run_name: name of a file for all clips in ``--output-dir``, without its suffix.
        is_journal: True if its one file for all clips is the run's journal: a JSON object per line.
        measured: True if its records need measurements.
        is_prose: True if it is text for people, shown on a terminal while it is written.
        is_text: False for binary files.
        lists_files: True if it names clips' files to a trainer, with one caption each: of clips that were captioned in
            several ways the last one's, under ``--cut`` the files of segments.
        replaceable: kind of an existing file that ``vidspec merge`` may replace.
        header: first line of a file of records.
        requires: package that it needs.
    """

    name: str = ""
    suffix: ClassVar[str]
    clip_files: ClassVar[ClipFileRule]
    update: ClassVar[Literal["append", "rewrite", "end"]]
    one_clip: ClassVar[bool] = False
    holds: ClassVar[Literal["text", "cues"] | None] = None
    clip_name: ClassVar[str] = "{stem}{suffix}"
    run_name: ClassVar[str] = "captions"
    is_journal: ClassVar[bool] = False
    measured: ClassVar[bool] = False
    is_prose: ClassVar[bool] = False
    is_text: ClassVar[bool] = True
    lists_files: ClassVar[bool] = False
    replaceable: ClassVar[FileKind] = FileKind("file without content", rb"(?!)")
    header: str | None = None
    requires: ClassVar[RequiredPackage | None] = None

    @abstractmethod
    def content(self, records: Iterable[RecordDict]) -> bytes:
        """Return the content of a file with all these records."""

    def check_clip(self, path: str, shard: str | None) -> None:  # noqa: B027, most formats take any clip
        """Check before anything is captioned that a clip can be in a file for all clips.

        Raises:
            UsageError: it cannot.
        """

    def document(self, records: Sequence[RecordDict]) -> str | None:
        """Return the content of one clip's file, from its records in segment order; None if none has a caption."""
        return None

    def read_caption(self, text: str) -> str:
        """Return the caption in the text of a clip's file, if the format :attr:`holds` it.

        Raises:
            ValueError: the text is no longer in the format.
        """
        return text.strip()

    def stored(self, record: RecordDict) -> RecordDict:
        """Return a record as the format keeps it, if it is a journal."""
        return record

    def line(self, record: RecordDict) -> str | None:
        """Return one record as a line without its newline; None if it has no text, as a failed clip in prose."""
        return None

    def stream_text(self, records: Sequence[RecordDict], *, last: bool) -> list[str] | None:
        """Return what a stream shows of a clip's records, without final newlines; None to wait for its ``last``."""
        if not last:
            return None
        document = self.document(records)
        return [document.removesuffix("\n")] if document else []


class LineFormat(OutputFormat):
    """One line per record. Subclasses define :meth:`line`, and :meth:`document` if a clip's file is not the same."""

    update = "append"

    @abstractmethod
    def line(self, record: RecordDict) -> str | None: ...

    def content(self, records: Iterable[RecordDict]) -> bytes:
        return encode_line(self._text(records))

    def document(self, records: Sequence[RecordDict]) -> str | None:
        return self._text(records) if has_caption(records) else None

    def stream_text(self, records: Sequence[RecordDict], *, last: bool) -> list[str] | None:
        return [text for text in map(self.line, records) if text is not None]

    def _text(self, records: Iterable[RecordDict]) -> str:
        return "".join(f"{one}\n" for one in (self.header, *map(self.line, records)) if one is not None)


class ClipFormat(OutputFormat):
    """One document per clip, made of all its captions. Subclasses define :meth:`render`."""

    clip_files = "always"
    update = "rewrite"
    one_clip = True

    @abstractmethod
    def render(self, captioned: Sequence[RecordDict]) -> str:
        """Return the document of a clip's records that have captions, at least one."""

    def content(self, records: Iterable[RecordDict]) -> bytes:
        return encode_line(self.document(list(records)) or "")

    def document(self, records: Sequence[RecordDict]) -> str | None:
        captioned = [record for record in records if record["caption"] is not None]
        return self.render(captioned) if captioned else None


class RunFormat(OutputFormat):
    """One file for all clips, written as a whole at the end of the run. Subclasses define :meth:`content`."""

    clip_files = "never"
    update = "end"


class ListFormat(RunFormat):
    """A trainer's list: a JSON object per line for each clip with a caption; those of segments or answers are joined.

    Paths are relative to the file's folder, or absolute for clips outside it.

    Attributes:
        video_key, picture_key, caption_key: keys of an object; those of a picture's path may be a video's.
    """

    suffix = ".jsonl"
    lists_files = True
    video_key: ClassVar[str] = "video"
    picture_key: ClassVar[str] = "video"
    caption_key: ClassVar[str] = "caption"

    def __init__(self, folder: str = ".") -> None:
        self.folder = folder

    def rows(self, captions: Mapping[str, str]) -> Iterable[Mapping[str, str]]:
        """Return the objects for these captions by path."""
        from vidspec.video.image import is_picture

        for path, caption in captions.items():
            yield {self.picture_key if is_picture(path) else self.video_key: path, self.caption_key: caption}

    def list_path(self, path: str) -> str:
        """Return a clip's path as the file has it."""
        path = os.path.abspath(path)
        relative = os.path.relpath(path, os.path.abspath(self.folder))
        return path if relative.split(os.sep, 1)[0] == os.pardir else relative

    def check_clip(self, path: str, shard: str | None) -> None:
        if shard is not None:
            message = f"{option('format', self.name)} lists files, and {path} is in {shard}"
            raise UsageError(
                message, hint=f"caption a folder of clips, or shards into {option('format', 'webdataset')}"
            )

    def content(self, records: Iterable[RecordDict]) -> bytes:
        captions: dict[str, str] = {}
        for record in records:
            if record["caption"] is not None:
                self.check_clip(record["path"], None)
                path = self.list_path(record["path"])
                captions[path] = " ".join(f"{captions.get(path, '')} {marked_caption(record)}".split())
        return encode_line("".join(json_text(row) + "\n" for row in self.rows(captions)))


class PartSummary(NamedTuple):
    """Summary in the finished file of a shard: number of clips, number of failed clips, and their settings."""

    clips: int
    failed: int
    settings: tuple[str, ...]

    @classmethod
    def of(cls, records: Iterable[RecordDict]) -> PartSummary:
        """Return the summary of all records of a file."""
        jobs = [(one["job"], one["error"] is not None) for one in records]
        clips, failed = {job["clip"] for job, _ in jobs}, {job["clip"] for job, lost in jobs if lost}
        return cls(len(clips), len(failed), tuple(sorted({job["settings"] for job, _ in jobs})))

    @classmethod
    def parse(cls, text: str | bytes) -> PartSummary:
        """Return the summary that :meth:`to_json` wrote.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        known = json.loads(text)
        return cls(known["clips"], known["failed"], tuple(known["settings"]))

    def to_json(self) -> str:
        return json.dumps(self._asdict())


class PartFormat(RunFormat):
    """A file for all clips or, with ``--output-dir``, one for each shard, which its summary and records are read from.

    A file without the records of failed clips is fine: they are captioned again from the shard.
    """

    @abstractmethod
    def read_summary(self, file: BinaryIO) -> PartSummary | None:
        """Return the summary of a file; None if it is not one of ours."""

    @abstractmethod
    def read_records(self, file: BinaryIO) -> Iterator[RecordDict]:
        """Yield the records of one of our files, with captions as the file shows them now."""


output_formats: Registry[OutputFormat] = Registry(
    OutputFormat, "formats", "vidspec.runs.formats", "format", "format", separator="-"
)


def format_names() -> tuple[str, ...]:
    """Return the names of all formats, without importing them."""
    return output_formats.names()


def make_format(
    name: str,
    origin: str | None = None,
    *,
    several: bool = False,
    data: Mapping[str, object] | None = None,
    texts: Sequence[str] = (),
    folder: str | os.PathLike[str] = ".",
) -> OutputFormat:
    """Return the format called ``name``.

    Args:
        name: one of :func:`format_names`.
        origin: option or key with its value, for the message; None for ``--format NAME``.
        several: True if a file holds several clips.
        data: JSON Schemas of the properties of answers in JSON, by name; a table has a column for each.
        texts: those of :data:`SECOND_TEXTS` that records have; a table has a column for each.
        folder: folder of one file for all clips.

    Raises:
        UsageError: there is no such format.
    """
    if name not in format_names():
        origin = origin or option("format", name)
        raise UsageError(f"{origin}: must be one of {', '.join(format_names())}, not {name!r}")
    facts = {"several": several, "data": data or {}, "texts": tuple(texts)}
    form = build_part(output_formats.get(name), {}, **facts, folder=os.fspath(folder))
    form.name = name
    return form


@cache
def holds_caption(name: str | None) -> Literal["text", "cues"] | None:
    """Return what the file of a clip in a format holds, see ``OutputFormat.holds``; None for an unknown format too."""
    return output_formats.get(name).holds if name in format_names() else None


def format_of_suffix(path: str) -> str | None:
    """Return the name of the format that is called like the suffix of a file; None if there is none."""
    name = os.path.splitext(path)[1].lower().removeprefix(".")
    return name if name in format_names() else None


def has_caption(records: Iterable[RecordDict]) -> bool:
    """Return True if a record has a caption."""
    return any(record["caption"] is not None for record in records)


def flat_record(record: RecordDict) -> RecordDict:
    """Return the record with the keys of its job at the top level, where a lean record has some of them."""
    return {**record, **(record.get("job") or {})}


def time_range(record: RecordDict) -> tuple[float, float]:
    """Return start and end of the captioned part, in seconds of the video."""
    part = flat_record(record)
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


def data_column(name: str) -> str:
    """Return the name of a table's column for a property of answers in JSON."""
    return f"data_{name}"


def data_value(record: RecordDict, name: str) -> object:
    """Return a property of a record's answer; None if it has none."""
    data = record.get("data")
    return data.get(name) if isinstance(data, dict) else None


def second_text(record: RecordDict, name: str) -> str | None:
    """Return a text of :data:`SECOND_TEXTS`; None if the record has none."""
    if name == "summary":
        return record.get("summary")
    return None if (original := record.get(name)) is None else str(original["text"])


def segment_of(record: RecordDict) -> int | None:
    """Return the number of a record's segment; None for a whole clip."""
    number: int | None = (record.get("job") or {}).get("segment")
    return number


def marked_caption(record: RecordDict) -> str:
    """Return the caption, with :data:`MARK` if built-in models wrote it and the user did not name them."""
    return f"{caption_mark(record)}{record['caption']}"


def caption_mark(record: RecordDict) -> str:
    """Return :data:`MARK` if built-in models wrote the caption and the user did not name them, else nothing."""
    return MARK if record.get("demo") and not (record.get("job") or {}).get("models_named") else ""


def one_line_caption(caption: str) -> str:
    """Return a caption on one line, with single blanks and escaped."""
    return one_line(" ".join(caption.split()))
