"""Turns outcomes into records that can be recognised later: what was captioned, how, and which part of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vidspec.dataset.identity import Content, clip_id, settings_id
from vidspec.dataset.work import Entry, How, Outcome, Questions, Work

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

    def __init__(self, profile: Mapping[str, Any], how: How) -> None:
        self.profile, self.how = profile, how
        self._known: dict[tuple[str | None, Questions | None], str] = {}

    def of(self, entry: Entry) -> str:
        """12 hex digits."""
        how = self.how
        questions = how.questions_of(entry)
        asked = entry.prompt, questions
        if asked not in self._known:
            kind = {} if questions is None else {"turns" if questions.in_turns else "prompts": questions.texts}
            self._known[asked] = settings_id(
                self.profile,
                prompt=entry.prompt or how.prompt,
                **kind,
                segment=how.segment,
                context=how.context and how.segment is not None,
            )
        return self._known[asked]


def record_of(outcome: Outcome, settings: Settings, content: Content) -> dict[str, Any]:
    """The record of ``outcome`` with its ``job``: ``clip, settings, size, mtime_ns`` and what applies of
    ``sha256, id, start, end, prompt, segment, segments, models_named, columns``."""
    work = outcome.work
    entry = work.entry or Entry(work.path)
    job = {
        "clip": clip_id(entry),
        "settings": settings.of(entry),
        **content._asdict(),
        "id": entry.id,
        "start": work.start,
        "end": work.end,
        "prompt": _prompt(work, entry, settings.how) or None,
        "segment": work.segment,
        "segments": work.segments,
        "models_named": (outcome.caption.demo and settings.how.models_named) or None,
        "columns": dict(entry.columns) or None,
    }
    return {**outcome.caption.to_dict(), "job": {key: value for key, value in job.items() if value is not None}}


def _prompt(work: Work, entry: Entry, how: How) -> str:
    questions = how.questions_of(entry)
    return questions.texts[work.segment or 0] if questions else entry.prompt or how.prompt


def lean(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without what was measured, as ``--format jsonl`` writes it; one that is so stays as it is."""
    job = record["job"]
    flat = {**record, **{key: job.get(key, record.get(key)) for key in LIFTED}}
    if question := record.get("question"):
        flat["question"] = {key: value for key, value in question.items() if key not in _BESIDE}
    kept = {key: value for key, value in job.items() if key not in LIFTED}
    return {key: kept if key == "job" else flat.get(key) for key in LEAN_KEYS}
