"""Records of results with their ``job``: identity of the clip, its content and the settings.

Captionings with equal clip, content and settings are the same. Reads files only to hash them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from vidspec.events.record import OPTIONAL_KEYS, RecordDict
from vidspec.runs.job import Job, JobConfig, JobQuestions, MemberSource
from vidspec.runs.rendering import render_caption

__all__ = [
    "INPUT_KEYS",
    "LEAN_KEYS",
    "FileContent",
    "SettingsDigest",
    "clip_id",
    "content_of",
    "lean_record",
    "raw_caption",
    "record_of",
]

#: Keys of a line of ``--format jsonl``: no measurements, so that the same captions give the same bytes.
LEAN_KEYS = (
    "path",
    "id",
    "start",
    "end",
    "prompt",
    "question",
    "caption",
    "text",
    "data",
    "token_ids",
    "ended",
    "lossless",
    "demo",
    "profile",
    "seed",
    "models",
    "video",
    "error",
    "columns",
    "job",
)
#: Keys of a question that depend on the rest of the run and so differ after a resume.
_RUN_KEYS = ("reused", "reused_by_draft", "saved_s")
#: Keys of a job about its input; in lean records they are at the top level.
INPUT_KEYS = ("id", "start", "end", "prompt", "columns")
#: Keys of a profile that do not affect captions: name, devices and speed.
#: Threads and packed weights may change the last bits of a sum, which is not meant to change a caption.
IRRELEVANT_KEYS = ("name", "about", "models.device", "models.threads", "models.packed", "workers", "video.stall")
CHUNK = 1 << 20


class FileContent(NamedTuple):
    """Identity of a file's content: size in bytes and mtime in ns, optionally SHA-256; None if unknown."""

    size: int | None
    mtime_ns: int | None
    sha256: str | None = None

    def same(self, other: FileContent) -> bool:
        """Return True if both are the same content: by hash if both have one, else by size and mtime."""
        if self.sha256 is not None and other.sha256 is not None:
            return self.sha256 == other.sha256
        return self[:2] == other[:2]


def content_of(path: str, source: MemberSource | None = None, *, checksum: bool = False) -> FileContent:
    """Return the content identity of the file at ``path``; unknown if unreadable (reported when captioned).

    For a clip in a shard it comes from the shard's metadata.
    """
    if source is not None:
        return FileContent(source.size, source.mtime_ns)
    try:
        info = os.stat(path)
        if not checksum or not Path(path).is_file():
            return FileContent(info.st_size, info.st_mtime_ns)
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        return FileContent(info.st_size, info.st_mtime_ns, digest.hexdigest())
    except OSError:
        return FileContent(None, None)


def clip_id(job: Job) -> str:
    """Return the 16 hex digits of a job's clip, a hash of its normalised path as named, time range and id if any.

    The id of a clip in a tar is part of its path and not hashed again.
    """
    clip = job.planned_job
    named = () if clip.id is None or (clip.shard or "").lower().endswith(".tar") else (clip.id,)
    return _digest([os.path.normpath(clip.path), clip.start, clip.end, *named], 16)


def _digest(value: object, digits: int) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


class SettingsDigest:
    """Digest of everything that may change a caption, per prompt; another digest is another captioning.

    Args:
        profile: the profile as nested plain values.
        config: settings of the run.
    """

    def __init__(self, profile: Mapping[str, Any], config: JobConfig) -> None:
        self.profile, self.config = profile, config
        self._relevant = {
            key: {inner: deep for inner, deep in value.items() if f"{key}.{inner}" not in IRRELEVANT_KEYS}
            if isinstance(value, Mapping)
            else value
            for key, value in profile.items()
            if key not in IRRELEVANT_KEYS
        }
        self._digests: dict[tuple[str | None, JobQuestions | None], str] = {}

    @property
    def name(self) -> str | None:
        """Name of the profile."""
        name: str | None = self.profile.get("name")
        return name

    def of(self, job: Job) -> str:
        """Return the 12 hex digits of a job's settings."""
        config, prompt = self.config, job.planned_job.prompt
        questions = config.questions_of(job)
        key = prompt, questions
        if key not in self._digests:
            about: dict[str, object] = {"prompt": prompt or config.prompt}
            if questions is not None:
                about["turns" if questions.in_turns else "prompts"] = questions.texts
            if config.template is not None:
                about |= {"template": config.template, "single_line": False}  # a key of 0.4.0's digests
            if config.segment is not None:
                about |= {"segment": config.segment} | ({"context": True} if config.context else {})
            about |= {key: value for key, value in (("rewrite", config.rewrite), ("summary", config.summary)) if value}
            self._digests[key] = _digest([self._relevant, about], 12)
        return self._digests[key]


def record_of(job: Job, settings: SettingsDigest, content: FileContent) -> RecordDict:
    """Return the record of a job's result, with its ``job``.

    The job has ``clip, settings, size, mtime_ns`` and the set ones of ``sha256, id, start, end, prompt, segment,
    segments, models_named, columns, existing``.
    """
    config, caption = settings.config, job.caption
    if caption.caption is not None and config.template is not None:
        written = render_caption(caption.caption, config.template, job.fields)
        caption = replace(caption, caption=written, text=caption.caption)
    about = {
        "clip": clip_id(job),
        "settings": settings.of(job),
        **content._asdict(),
        "id": job.id,
        "start": job.start,
        "end": job.end,
        "prompt": config.prompt_of(job) or None,
        "segment": job.segment,
        "segments": job.segments,
        "models_named": (caption.demo and config.models_named) or None,
        "columns": dict(job.columns) or None,
        "existing": job.existing or None,
    }
    return {**caption.to_dict(), "job": {key: value for key, value in about.items() if value is not None}}


def raw_caption(record: RecordDict) -> str | None:
    """Return what the model wrote about the video, before any second pass; None if the clip failed."""
    if (original := record.get("original")) is not None:
        return str(original["text"])
    text: str | None = record.get("text")
    return record.get("caption") if text is None else text


def lean_record(record: RecordDict) -> RecordDict:
    """Return a record without measurements, as ``--format jsonl`` writes it. Idempotent."""
    job = record["job"]
    flat = {**record, **{key: job.get(key, record.get(key)) for key in INPUT_KEYS}}
    if question := record.get("question"):
        flat["question"] = {key: value for key, value in question.items() if key not in _RUN_KEYS}
    kept = {key: value for key, value in job.items() if key not in INPUT_KEYS}
    lean = {key: kept if key == "job" else flat.get(key) for key in LEAN_KEYS}
    return lean | {key: record[key] for key in OPTIONAL_KEYS if key in record}
