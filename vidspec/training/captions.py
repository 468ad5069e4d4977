"""Captions that a head may learn from: those that one target itself wrote, word by word, and why others are left out.

Token ids come from the records, which have them in every format that is read.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from vidspec.config import profiles
from vidspec.config.schema import Profile
from vidspec.decoding.setup import PLAIN_DECODING
from vidspec.errors import ProfileError, UsageError, VidspecError
from vidspec.events.record import RecordDict
from vidspec.models.loading import embedded_folder
from vidspec.models.request import CaptionRequest, DialogueTurn
from vidspec.runs.job import Job, MemberSource
from vidspec.runs.sources.base import is_shard, shard_members
from vidspec.runs.store.caption_set import CaptionEntry, CaptionSet
from vidspec.runs.store.records import raw_caption
from vidspec.training.states import CaptionedClip

__all__ = ["FEWEST", "LearnableCaptions", "learnable_captions"]

#: Captions below which a head learns nothing that holds for other clips.
FEWEST = 50


@dataclass(frozen=True)
class LearnableCaptions:
    """Captions of one target.

    Attributes:
        clips: the captions.
        profile: of the last of these captions, as plain decoding of the target alone.
        left_out: number of other captions, by the reason.
        prompts: number of different prompts.
    """

    clips: list[CaptionedClip]
    profile: Profile
    left_out: Mapping[str, int]
    prompts: int


def learnable_captions(
    captions: CaptionSet, target: str | None = None, places: Sequence[Path] = ()
) -> LearnableCaptions:
    """Return the captions that a target wrote.

    Args:
        captions: of any places.
        target: its name; None for the one that wrote most of them.
        places: the captions as the user named them, for messages.

    Raises:
        UsageError: there are fewer than :data:`FEWEST`.
    """
    left_out, of_targets = Counter[str](), defaultdict[_TargetId, list[CaptionEntry]](list)
    for entry in captions:
        if (reason := _refusal(entry)) is not None:
            left_out[reason] += 1
        elif entry.run is not None:
            of_targets[_target_of(entry.run.profile["models"])].append(entry)
    same = {target} if target is None else {target, os.path.abspath(target)}
    fitting = [key for key in of_targets if target is None or not same.isdisjoint((key[0], os.path.abspath(key[0])))]
    name, adapter = max(fitting, key=lambda key: len(of_targets[key]), default=("", None))
    found = of_targets.pop((name, adapter), [])
    left_out["of another target"] = sum(map(len, of_targets.values()))
    clips, profile = _clips(found, left_out)
    if profile is None or len(clips) < FEWEST:
        told = "".join(f"; left out are {count} {reason}" for reason, count in left_out.items() if count)
        wrote = f" that {target or 'one target'} wrote"
        raise UsageError(
            f"{', '.join(map(str, places)) or 'the captions'}: {len(clips)} captions{wrote}, and a head learns from "
            f"{FEWEST} or more{told}",
            hint="caption more clips; 300 to 5,000 are usual",
        )
    plain = {"name": "ar", "models.pair": None, "models.target": name, "models.draft": None}
    profile = profiles.override(profile, {**PLAIN_DECODING, **plain})
    return LearnableCaptions(clips, profile, +left_out, len({clip.request.prompt for clip in clips}))


#: Name of a target, and of the LoRA merged into it.
_TargetId: TypeAlias = tuple[str, str | None]


def _target_of(models: Any) -> _TargetId:
    """Return the target of a profile's section ``models``, of a pair its folder."""
    pair = models.get("pair")
    return str(models.get("target") if pair is None else embedded_folder(pair, "target")), models.get("adapter")


def _refusal(entry: CaptionEntry) -> str | None:
    """Return why a caption is not learned from, as words after a number; None if it may be."""
    record, run = entry.record or {}, entry.run
    reasons = {
        "without a caption": entry.state in ("failed", "missing") or record.get("error") is not None,
        "edited since": entry.state == "edited",
        "written by no run": entry.state == "foreign" or not record,
        "of clips that have changed since": entry.state == "superseded",
        "whose run is not known, as before version 0.5.0 or without the hidden file beside them": run is None,
        "of a profile that is not lossless": record.get("lossless") is False,
        "of less than two tokens": len(record.get("token_ids") or ()) < 2,
        "that quote the caption before": run is not None and bool(run.spec.get("context")) and bool(entry.segment),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _clips(entries: list[CaptionEntry], left_out: Counter[str]) -> tuple[list[CaptionedClip], Profile | None]:
    """Return captions with what was asked, and the profile of the last one; counts those that are left out."""
    clips, members, turns = list[CaptionedClip](), _ShardMembers(), defaultdict[str, list[DialogueTurn]](list)
    known, profile = dict[int, Profile | None](), None  # by description of a run, which entries share
    seen = set[tuple[object, ...]]()
    for entry in sorted(entries, key=lambda one: (one.path, one.start, one.segment or 0)):
        assert entry.run is not None and entry.record is not None
        if id(entry.run) not in known:
            known[id(entry.run)] = None
            with suppress(ProfileError):
                known[id(entry.run)] = profiles.parse(entry.run.profile)
        own, question = known[id(entry.run)], entry.record.get("question") or {}
        earlier = turns[f"{entry.clip} {entry.record['job']['settings']}"] if question.get("kind") == "turn" else []
        same = entry.clip, entry.segment, question.get("prompt"), *entry.record["token_ids"]
        if same in seen:
            left_out["that are there again, as in another template"] += 1
        elif own is None:
            left_out["of a profile that this version does not read"] += 1
        elif question.get("kind") == "turn" and question["index"] != len(earlier):
            left_out["after answers that are left out"] += 1
        else:
            profile = own
            seen.add(same)
            clips.append(_clip(entry, entry.record, own, members.source(entry), earlier))
            earlier.append(DialogueTurn(clips[-1].request.prompt or "", raw_caption(entry.record) or ""))
    return clips, profile


def _clip(
    entry: CaptionEntry, record: RecordDict, profile: Profile, source: MemberSource | None, earlier: list[DialogueTurn]
) -> CaptionedClip:
    job, generate = {**record, **record["job"]}, profile.generate
    prompt = str((record.get("question") or {}).get("prompt") or job.get("prompt") or generate.prompt)
    start, end = job.get("start"), job.get("end")
    request = CaptionRequest(entry.path, None, prompt, generate.system, start=start, end=end, earlier=tuple(earlier))
    greedy = not (generate.temperature or generate.grammar_schema or generate.penalties)
    named = entry.path if job.get("id") is None else f"{entry.path}\n{job['id']}"
    key, tokens = f"{entry.clip} {job['settings']} {entry.segment}", tuple(record["token_ids"])
    return CaptionedClip(key, named, request, profile.video, tokens, greedy, source)


class _ShardMembers:
    """Places of clips in shards, each of which is listed once."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, object], dict[str, MemberSource | None]] = {}

    def source(self, entry: CaptionEntry) -> MemberSource | None:
        """Return the place of a clip in its shard; None for a file, or if it is not there any more."""
        above = (str(path) for path in Path(entry.path).parents if path.is_file())
        shard = None if os.path.lexists(entry.path) else next(filter(is_shard, above), None)
        if shard is None:
            return None
        column = None if entry.run is None else entry.run.spec.get("column")
        if (shard, column) not in self._members:
            jobs = list[Job]()
            with suppress(VidspecError):  # each of its clips says that it is missing
                jobs = shard_members(Job(shard), None if column is None else str(column))
            self._members[shard, column] = {job.path: job.source for job in jobs}
        return self._members[shard, column].get(entry.path)
