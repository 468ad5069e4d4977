"""Records of results with their ``job``: identity of the clip, its content and the settings.

Captionings with equal clip, content and settings are the same. Reads files only to hash them.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vidspec.events.record import OPTIONAL_KEYS, RecordDict
from vidspec.runs.job import Job, MemberSource, prompt_of, questions_of
from vidspec.runs.rendering import render_caption

if TYPE_CHECKING:
    from vidspec.config.run_spec import RunSpec
    from vidspec.config.schema import Profile

#: Keys of a line of ``--format jsonl``: no measurements, so that the same captions give the same bytes.
LEAN_KEYS = (
    *("path", "id", "start", "end", "prompt", "question", "caption", "text", "data", "token_ids", "ended", "lossless"),
    *("demo", "profile", "seed", "models", "video", "error", "columns", "job"),
)
#: Keys of a question that depend on the rest of the run and so differ after a resume.
_RUN_KEYS = ("reused", "reused_by_draft", "saved_s")
#: Keys of a job about its input; in lean records they are at the top level.
INPUT_KEYS = ("id", "start", "end", "prompt", "columns")
CHUNK = 1 << 20


class FileContent(NamedTuple):
    """Identity of a file's content: size in bytes and mtime in ns, optionally SHA-256; None if unknown."""

    size: int | None
    mtime_ns: int | None
    sha256: str | None = None

    @classmethod
    def of_job(cls, job: RecordDict) -> FileContent:
        """Return the content that the ``job`` of a record names."""
        return cls(*(job.get(key) for key in cls._fields))

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
    return _hash(json.dumps([os.path.normpath(clip.path), clip.start, clip.end, *named], default=str), 16)


def _hash(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


def settings_digest(job: Job, spec: RunSpec, profile: Profile) -> str:
    """Return the 12 hex digits of everything that may change a caption of a clip; others are another captioning."""
    about: dict[str, object] = {"prompt": job.planned_job.prompt or profile.generate.prompt}
    if (questions := questions_of(job, spec)) is not None:
        about["turns" if questions.in_turns else "prompts"] = questions.texts
    if (own := job.planned_job.options) is not None:
        about["options"] = asdict(own)
    if spec.template is not None:
        about |= {"template": spec.template, "single_line": False}  # a key of 0.4.0's digests
    if spec.segment is not None:
        about |= {"segment": spec.segment} | ({"context": True} if spec.context else {})
    limit = None if spec.limit is None else [spec.limit, spec.limit_tokenizer or "words"]
    second = (("rewrite", spec.rewrite), ("limit", limit), ("summary", spec.summary))
    about |= {key: value for key, value in second if value}
    text = f"[{profile.caption_keys}, {json.dumps(about, sort_keys=True)}]"
    return _hash(text, 12)


def record_of(job: Job, spec: RunSpec, profile: Profile, content: FileContent) -> RecordDict:
    """Return the record of a job's result, with its ``job``.

    The job has ``clip, settings, size, mtime_ns`` and the set ones of ``sha256, id, start, end, prompt, segment,
    segments, models_named, columns, existing``.
    """
    caption = job.caption
    if caption.caption is not None and spec.template is not None:
        written = render_caption(caption.caption, spec.template, job.fields)
        caption = replace(caption, caption=written, text=caption.caption)
    about = {
        "clip": clip_id(job),
        "settings": settings_digest(job, spec, profile),
        **content._asdict(),
        "id": job.id,
        "start": job.start,
        "end": job.end,
        "prompt": prompt_of(job, spec, profile) or None,
        "segment": job.segment,
        "segments": job.segments,
        "models_named": (caption.demo and spec.names_models) or None,
        "columns": dict(job.columns) or None,
        "existing": job.existing or None,
    }
    return {**caption.to_dict(), "job": {key: value for key, value in about.items() if value is not None}}


def rendered_record(record: RecordDict, job: Job, spec: RunSpec, settings: str) -> RecordDict:
    """Return a record with its caption in the template of a run, under the settings of that run."""
    text = record["caption"] if record.get("text") is None else record["text"]
    shown = text if text is None or spec.template is None else render_caption(text, spec.template, job.fields)
    about = {**record["job"], "settings": settings}
    return {**record, "caption": shown, "text": None if spec.template is None else text, "job": about}


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
