"""The record of an outcome with its ``job``: which clip, which content of it, and under which settings.

Two captionings with the same clip, content and settings are the same. Reads files only to hash them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from vidspec.dataset.job import Job, JobConfig, JobQuestions, JobResult, MemberSource
from vidspec.dataset.rendering import render_caption
from vidspec.events.record import RecordDict

__all__ = [
    "LEAN_KEYS",
    "LIFTED",
    "FileContent",
    "SettingsDigest",
    "clip_id",
    "content_of",
    "lean_record",
    "raw_caption",
    "record_of",
]

#: The keys of a line of ``--format jsonl``: nothing that was measured, so that the same captions are the same bytes.
LEAN_KEYS = (
    "path",
    "id",
    "start",
    "end",
    "prompt",
    "question",
    "caption",
    "text",
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
#: What of a question depends on what else the run did: not the same where the run is resumed.
_OF_THE_RUN = ("reused", "reused_by_draft", "saved_s")
#: What a job says of its input, which such a line says beside it.
LIFTED = ("id", "start", "end", "prompt", "columns")
#: Keys of a profile that say where and how fast a model runs or what the profile is called, not what it answers.
#: Threads and packed weights may change the last bits of a sum, which is not meant to change a caption.
NOT_ANSWERS = ("name", "about", "models.device", "models.threads", "models.packed", "workers", "video.stall")
CHUNK = 1 << 20


class FileContent(NamedTuple):
    """A file's content, cheaply (size in bytes and time of change in ns) or surely (SHA-256); None where unknown."""

    size: int | None
    mtime_ns: int | None
    sha256: str | None = None

    def same(self, other: FileContent) -> bool:
        """Whether both are the same content: by their hashes if both have one, else by size and time."""
        if self.sha256 is not None and other.sha256 is not None:
            return self.sha256 == other.sha256
        return self[:2] == other[:2]


def content_of(path: str, source: MemberSource | None = None, *, checksum: bool = False) -> FileContent:
    """The content of the file at ``path``; unknown if it cannot be read (its error comes with its captioning).

    Of a clip in a shard it is what the shard says of it.
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
    """16 hex digits for the clip of a job: its normalised path as named, what of it is captioned, and its id if any."""
    clip = job.planned_job
    named = () if clip.id is None else (clip.id,)
    return _digest([os.path.normpath(clip.path), clip.start, clip.end, *named], 16)


def _digest(value: object, digits: int) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


class SettingsDigest:
    """Everything that may change a caption as a short name, for each prompt; another name is another captioning.

    Args:
        profile: as nested plain values.
        config: the run.
    """

    def __init__(self, profile: Mapping[str, Any], config: JobConfig) -> None:
        self.profile, self.config = profile, config
        self._answering = {
            key: {inner: deep for inner, deep in value.items() if f"{key}.{inner}" not in NOT_ANSWERS}
            if isinstance(value, Mapping)
            else value
            for key, value in profile.items()
            if key not in NOT_ANSWERS
        }
        self._known: dict[tuple[str | None, JobQuestions | None], str] = {}

    @property
    def name(self) -> str | None:
        """The profile's."""
        name: str | None = self.profile.get("name")
        return name

    def of(self, job: Job) -> str:
        """12 hex digits."""
        config, prompt = self.config, job.planned_job.prompt
        questions = config.questions_of(job)
        key = prompt, questions
        if key not in self._known:
            about: dict[str, object] = {"prompt": prompt or config.prompt}
            if questions is not None:
                about["turns" if questions.in_turns else "prompts"] = questions.texts
            if config.template is not None or config.single_line:
                about |= {"template": config.template, "single_line": config.single_line}
            if config.segment is not None:
                about |= {"segment": config.segment} | ({"context": True} if config.context else {})
            self._known[key] = _digest([self._answering, about], 12)
        return self._known[key]


def record_of(outcome: JobResult, settings: SettingsDigest, content: FileContent) -> RecordDict:
    """The record of ``outcome`` with its ``job``: ``clip, settings, size, mtime_ns`` and what applies of
    ``sha256, id, start, end, prompt, segment, segments, models_named, columns``."""
    job, config, caption = outcome.job, settings.config, outcome.caption
    if caption.caption is not None and (config.template is not None or config.single_line):
        written = render_caption(caption.caption, config.template, single_line=config.single_line)
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
    }
    return {**caption.to_dict(), "job": {key: value for key, value in about.items() if value is not None}}


def raw_caption(record: RecordDict) -> str | None:
    """The caption as the model wrote it; None if the clip failed."""
    text: str | None = record.get("text")
    return record.get("caption") if text is None else text


def lean_record(record: RecordDict) -> RecordDict:
    """A record without what was measured, as ``--format jsonl`` writes it; one that is so stays as it is."""
    job = record["job"]
    flat = {**record, **{key: job.get(key, record.get(key)) for key in LIFTED}}
    if question := record.get("question"):
        flat["question"] = {key: value for key, value in question.items() if key not in _OF_THE_RUN}
    kept = {key: value for key, value in job.items() if key not in LIFTED}
    return {key: kept if key == "job" else flat.get(key) for key in LEAN_KEYS}
