"""Metric A of a bench's records: the whole target reads what was written in its name. It decodes nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vidspec.bench.results import ACCEPTED
from vidspec.captioner import Captioner
from vidspec.config.labels import DRAFT
from vidspec.config.profiles import Profile
from vidspec.engine.forward import Engine
from vidspec.engine.requests import alone
from vidspec.events.trace import Trace
from vidspec.models import prompt
from vidspec.models.base import Prefix
from vidspec.models.request import Request
from vidspec.pruning.target.metric import accepted_by_target

__all__ = ["judge"]


@torch.inference_mode()
def judge(
    contenders: Mapping[str, Captioner],
    clips: Mapping[str, Path],
    stored: Sequence[dict[str, Any]],
    say: Callable[[str], None],
    save: Callable[[], None] = lambda: None,
) -> None:
    """Enter ``accepted_by_target`` into the first record of each clip and contender that is not lossless.

    One pass of the first contender's target over each caption, behind the prompt of the caption's own profile.

    Args:
        contenders: by name.
        clips: paths by the name that records have.
        stored: records as JSON values with ``contender``; those that were judged before are left alone.
        say: is told which clip is read.
        save: called when the records of a clip have changed.
    """
    texts: dict[str, dict[str, dict[str, Any]]] = {}
    for one in stored:
        if one["contender"] in contenders and (one["contender"] == DRAFT or not one["lossless"]):
            texts.setdefault(one["path"], {}).setdefault(one["contender"], one)
    target = next(iter(contenders.values())).target.model
    for clip, path in clips.items():
        waiting = [one for one in texts.get(clip, {}).values() if ACCEPTED not in one and one["token_ids"]]
        if not waiting:
            continue
        say(f"accepted by target {clip}")
        read: dict[tuple[object, ...], Prefix] = {}
        for one in waiting:
            captioner = contenders[one["contender"]]
            wanted = _asks(captioner.profile)
            if wanted not in read:
                generate = captioner.profile.generate
                request = Request(str(path), captioner.read(path), generate.prompt, generate.system)
                read[wanted] = alone(prompt.read(target, request, Trace(), "target"))
            one[ACCEPTED] = round(accepted_by_target(Engine(target), read[wanted], one["token_ids"]), 6)
        save()


def _asks(profile: Profile) -> tuple[object, ...]:
    return profile.video, profile.generate.prompt, profile.generate.system
