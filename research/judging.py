"""Metric A of ParallelVLM's Table 2: the share of a text that the full-context target would have written itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from vidspec.bench.measure import BenchRun
from vidspec.bench.results import StoredRun
from vidspec.captioner import Captioner
from vidspec.config.labels import DRAFT
from vidspec.config.schema import Profile
from vidspec.engine.forward import Engine
from vidspec.engine.requests import run_to_completion
from vidspec.engine.rows import Rows
from vidspec.events.trace import Trace
from vidspec.models import prompt
from vidspec.models.base import EmbeddedPrompt
from vidspec.models.request import CaptionRequest

#: Entry of a stored record.
ACCEPTED = "accepted_by_target"


@torch.inference_mode()
def judge(
    contenders: Mapping[str, Captioner],
    clips: Mapping[str, Path],
    stored: Sequence[StoredRun],
    say: Callable[[str], None],
    save: Callable[[], None] = lambda: None,
) -> None:
    """Enter ``accepted_by_target`` into the first record of each clip and contender that is not lossless.

    One pass of the first contender's target over each caption, after the prompt of the caption's own profile.

    Args:
        contenders: by name.
        clips: paths by their name in records.
        stored: records as JSON values with ``contender``; records judged before are left alone.
        say: called with the clip being read.
        save: called when the records of a clip have changed.
    """
    texts: dict[str, dict[str, StoredRun]] = {}
    for one in stored:
        if one["contender"] in contenders and (one["contender"] == DRAFT or not one["lossless"]):
            texts.setdefault(one["path"], {}).setdefault(one["contender"], one)
    target = next(iter(contenders.values())).client.setup.target.model
    for clip, path in clips.items():
        waiting = [one for one in texts.get(clip, {}).values() if ACCEPTED not in one and one["token_ids"]]
        if not waiting:
            continue
        say(f"accepted by target {clip}")
        read: dict[tuple[object, ...], EmbeddedPrompt] = {}
        for one in waiting:
            captioner = contenders[one["contender"]]
            wanted = _prompt_key(captioner.client.profile)
            if wanted not in read:
                generate = captioner.client.profile.generate
                request = CaptionRequest(
                    str(path), captioner.client.inputs.read(path), generate.prompt, generate.system
                )
                read[wanted] = run_to_completion(prompt.encode_prompt(target, request, Trace(), "target"))
            one[ACCEPTED] = round(accepted_by_target(Engine(target), read[wanted], one["token_ids"]), 6)
        save()


def judge_bench(run: BenchRun, say: Callable[[str], None]) -> dict[str, float]:
    """Judge the records of a bench and return metric A by contender; nothing for a bench of dialogues."""
    if run.bench.turns:
        return {}
    judge(run.captioners, {clip: Path(clip) for clip in run.clips}, run.results.stored, say, run.results.rewrite)
    return accepted_shares(run.results.stored)


def accepted_shares(records: Iterable[StoredRun]) -> dict[str, float]:
    """Return metric A by contender, over the tokens of all judged records, the first of each clip."""
    found: dict[str, dict[str, tuple[float, int]]] = {}
    for one in records:
        if one.get(ACCEPTED) is not None:
            found.setdefault(one["contender"], {}).setdefault(one["path"], (one[ACCEPTED], len(one["token_ids"])))
    return {
        name: sum(share * tokens for share, tokens in by_clip.values()) / sum(tokens for _, tokens in by_clip.values())
        for name, by_clip in found.items()
    }


def _prompt_key(profile: Profile) -> tuple[object, ...]:
    return profile.video, profile.generate.prompt, profile.generate.system


def acceptance_share(token_ids: Sequence[int], wanted: Sequence[int]) -> float:
    """Return the share of tokens that are the full-context target's choice (metric A, ParallelVLM 5.1).

    Args:
        token_ids: n tokens of the pruned target, at least one.
        wanted: the target's greedy choice at each position, after the pruned target's own previous tokens.

    Raises:
        ValueError: there are none, or the two differ in length.
    """
    if not token_ids or len(token_ids) != len(wanted):
        raise ValueError(f"cannot compare {len(token_ids)} tokens with {len(wanted)}")
    return sum(one == other for one, other in zip(token_ids, wanted, strict=True)) / len(token_ids)


def target_choices(engine: Engine, prefix: EmbeddedPrompt, token_ids: Sequence[int]) -> list[int]:
    """Return the full-context target's greedy choice at each position of a text, given the text before it.

    Args:
        engine: the target, not pruned.
        prefix: its prompt.
        token_ids: the text, at least one token; read in one pass.
    """
    read = engine.prefill(prefix, len(token_ids))
    wanted = [int(read.logits.argmax())]
    if len(token_ids) > 1:
        wanted += engine.run([Rows(read.span, token_ids[:-1])])[0].logits.argmax(dim=-1).tolist()
    return wanted


def accepted_by_target(engine: Engine, prefix: EmbeddedPrompt, token_ids: Sequence[int]) -> float:
    """Return metric A of one text; arguments as for :func:`target_choices`."""
    return acceptance_share(token_ids, target_choices(engine, prefix, token_ids))
