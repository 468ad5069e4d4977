"""Captions that a head may learn from: those that one target itself wrote, word by word, and why others are left out.

Token ids come from the records, which have them in every format that is read.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vidspec.config import profiles
from vidspec.config.schema import Profile
from vidspec.decoding.setup import PLAIN_DECODING
from vidspec.errors import ProfileError, UsageError
from vidspec.models.loading import embedded_folder
from vidspec.models.request import CaptionRequest
from vidspec.runs.store.caption_set import CaptionEntry, CaptionSet
from vidspec.training.states import CaptionedClip

__all__ = ["FEWEST", "LearnableCaptions", "learnable_captions"]

#: Captions below which a head learns nothing that holds for other clips.
FEWEST = 50


@dataclass(frozen=True)
class LearnableCaptions:
    """Captions of one target.

    Attributes:
        clips: the captions.
        profile: of the last run that wrote some, as plain decoding of the target alone.
        left_out: number of other captions, by the reason.
        prompts: number of different prompts.
    """

    clips: list[CaptionedClip]
    profile: Profile
    left_out: Mapping[str, int]
    prompts: int


@dataclass(frozen=True)
class _TargetKey:
    """Names of a target and of the LoRA merged into it."""

    target: str
    adapter: str | None

    @classmethod
    def of(cls, models: Mapping[str, Any]) -> _TargetKey:
        pair, target = models.get("pair"), models.get("target")
        return cls(str(embedded_folder(pair, "target")) if pair is not None else str(target), models.get("adapter"))

    def is_named(self, name: str) -> bool:
        """Return True if a user means this target."""
        return name == self.target or os.path.abspath(name) == os.path.abspath(self.target)


def learnable_captions(captions: CaptionSet, target: str | None = None, places: str = "") -> LearnableCaptions:
    """Return the captions that a target wrote.

    Args:
        captions: of any places.
        target: its name; None for the one that wrote most of them.
        places: the captions as the user named them, for messages.

    Raises:
        UsageError: there are fewer than :data:`FEWEST`.
    """
    left_out, of_targets = Counter[str](), dict[_TargetKey, list[tuple[CaptionEntry, Profile]]]()
    read: dict[int, Profile | None] = {}  # by description of a run, which entries share
    for entry in captions:
        if (reason := _refusal(entry)) is not None:
            left_out[reason] += 1
            continue
        assert entry.run is not None
        if id(entry.run) not in read:
            read[id(entry.run)] = _profile_of(entry.run.profile)
        profile = read[id(entry.run)]
        if profile is None:
            left_out["of a profile that this version does not read"] += 1
            continue
        of_targets.setdefault(_TargetKey.of(entry.run.profile["models"]), []).append((entry, profile))  # type: ignore[arg-type]
    fitting = [key for key in of_targets if target is None or key.is_named(target)]
    chosen = max(fitting, key=lambda key: len(of_targets[key]), default=None)
    others = sum(len(entries) for key, entries in of_targets.items() if key != chosen)
    left_out.update({"of another target": others} if others else {})
    found = of_targets[chosen] if chosen is not None else []
    if len(found) < FEWEST:
        told = "".join(f"; left out are {count} {reason}" for reason, count in left_out.items())
        wrote = f" that {target} wrote" if target is not None else " that one target wrote"
        raise UsageError(
            f"{places or 'the captions'}: {len(found)} captions{wrote}, and a head learns from {FEWEST} or more{told}",
            hint="caption more clips; 300 to 5,000 are usual",
        )
    assert chosen is not None
    plain = {"name": "ar", "models.pair": None, "models.target": chosen.target, "models.draft": None}
    profile = profiles.override(found[-1][1], {**PLAIN_DECODING, **plain})
    clips = [_clip(*one) for one in sorted(found, key=lambda one: (one[0].path, one[0].start))]
    return LearnableCaptions(clips, profile, left_out, len({clip.request.prompt for clip in clips}))


def _refusal(entry: CaptionEntry) -> str | None:
    """Return why a caption is not learned from, as words after a number; None if it may be."""
    record, run = entry.record, entry.run
    if entry.state in ("failed", "missing") or (record is not None and record.get("error") is not None):
        return "without a caption"
    if entry.state == "edited":
        return "edited since"
    if entry.state == "foreign" or record is None:
        return "written by no run"
    if entry.state == "superseded":
        return "of clips that have changed since"
    if run is None:
        return "whose run is not known, as before version 0.5.0 or without the hidden file beside them"
    if record.get("lossless") is False:
        return "of a profile that is not lossless"
    if len(record.get("token_ids") or ()) < 2:
        return "of less than two tokens"
    question = record.get("question") or {}
    if question.get("kind") == "turn" and question.get("index"):
        return "that answer earlier answers"
    if run.spec.get("context") and entry.segment:
        return "that quote the caption before"
    return None


def _profile_of(described: Mapping[str, object]) -> Profile | None:
    try:
        return profiles.parse(described)
    except ProfileError:
        return None


def _clip(entry: CaptionEntry, profile: Profile) -> CaptionedClip:
    assert entry.record is not None
    record, generate = entry.record, profile.generate
    job = {**record, **record["job"]}
    question = record.get("question") or {}
    prompt = question.get("prompt") or job.get("prompt") or generate.prompt
    request = CaptionRequest(entry.path, None, str(prompt), generate.system, start=job.get("start"), end=job.get("end"))
    changes = (generate.temperature, generate.json_schema, generate.repetition_penalty != 1, generate.no_repeat_ngram)
    named = entry.path if job.get("id") is None else f"{entry.path}\n{job['id']}"
    key = f"{entry.clip} {job['settings']} {entry.segment}"
    return CaptionedClip(key, named, request, profile.video, tuple(record["token_ids"]), greedy=not any(changes))
