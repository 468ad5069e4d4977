"""Turns outcomes into records that can be recognised later: what was captioned, how, and which part of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vidspec.dataset.identity import Content, clip_id, settings_id
from vidspec.dataset.job import Job, JobConfig, Outcome, Questions

__all__ = ["LEAN_KEYS", "LIFTED", "Settings", "lean", "record_of"]

#: The keys of a line of ``--format jsonl``: nothing that was measured, so that the same captions are the same bytes.
LEAN_KEYS = (
    "path",
    "id",
    "start",
    "end",
    "prompt",
    "question",
    "caption",
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
_BESIDE = ("reused", "reused_by_draft", "saved_s")
#: What a job says of its input, which such a line says beside it.
LIFTED = ("id", "start", "end", "prompt", "columns")


class Settings:
    """The settings of a run as a short name, for each prompt; what differs in any of them is another captioning."""

    def __init__(self, profile: Mapping[str, Any], config: JobConfig) -> None:
        self.profile, self.config = profile, config
        self._known: dict[tuple[str | None, Questions | None], str] = {}

    @property
    def name(self) -> str | None:
        """The profile's."""
        name: str | None = self.profile.get("name")
        return name

    def of(self, job: Job) -> str:
        """12 hex digits."""
        config, prompt = self.config, job.whole.prompt
        questions = config.questions_of(job)
        key = prompt, questions
        if key not in self._known:
            kind = {} if questions is None else {"turns" if questions.in_turns else "prompts": questions.texts}
            self._known[key] = settings_id(
                self.profile,
                prompt=prompt or config.prompt,
                **kind,
                segment=config.segment,
                context=config.context and config.segment is not None,
            )
        return self._known[key]


def record_of(outcome: Outcome, settings: Settings, content: Content) -> dict[str, Any]:
    """The record of ``outcome`` with its ``job``: ``clip, settings, size, mtime_ns`` and what applies of
    ``sha256, id, start, end, prompt, segment, segments, models_named, columns``."""
    job = outcome.job
    about = {
        "clip": clip_id(job),
        "settings": settings.of(job),
        **content._asdict(),
        "id": job.id,
        "start": job.start,
        "end": job.end,
        "prompt": settings.config.prompt_of(job) or None,
        "segment": job.segment,
        "segments": job.segments,
        "models_named": (outcome.caption.demo and settings.config.models_named) or None,
        "columns": dict(job.columns) or None,
    }
    return {**outcome.caption.to_dict(), "job": {key: value for key, value in about.items() if value is not None}}


def lean(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without what was measured, as ``--format jsonl`` writes it; one that is so stays as it is."""
    job = record["job"]
    flat = {**record, **{key: job.get(key, record.get(key)) for key in LIFTED}}
    if question := record.get("question"):
        flat["question"] = {key: value for key, value in question.items() if key not in _BESIDE}
    kept = {key: value for key, value in job.items() if key not in LIFTED}
    return {key: kept if key == "job" else flat.get(key) for key in LEAN_KEYS}
