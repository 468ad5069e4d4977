"""Checks of shapes and ranges in what pruners, drafters, acceptance rules and schedules return: once a round.

A wrong one could end the process of a GPU or change the text. It fails its clip, with one line that names the part.
The methods of its contract are checked when a part is registered; an answer of another type fails its clip with a
traceback. Whether probabilities sum to 1 is not checked, as reading them would wait for the device.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

import torch

from vidspec.errors import GenerationError
from vidspec.pruning.base import kept_count

if TYPE_CHECKING:
    from vidspec.acceptance.base import Verdict
    from vidspec.decoding.sequence import Sequence
    from vidspec.drafting.base import Draft

#: Profile keys of the parts.
_KEYS = {"pruner": "prune.method", "drafter": "draft.kind", "acceptance rule": "accept.rule"}


def check_kept(sequence: Sequence, kept: torch.Tensor, count: int, alpha: float) -> None:
    """Check a pruner's answer: the indices of the visual tokens that it keeps, out of ``count``.

    Raises:
        GenerationError: they are not :func:`~vidspec.pruning.base.kept_count` sorted indices.
    """
    wanted = kept_count(count, alpha)
    if kept.dtype not in (torch.int64, torch.int32) or kept.shape != (wanted,):
        returned = f"returned {tuple(kept.shape)} {kept.dtype}"
        problem = f"{returned}, and prune.alpha {alpha:g} keeps ({wanted},) int64 indices of {count} visual tokens"
        _refuse(sequence, "pruner", sequence.setup.pruner, problem)
    indices = kept.tolist()
    if indices[0] < 0 or indices[-1] >= count or any(first >= second for first, second in pairwise(indices)):
        problem = f"returned indices that are not sorted, each once, between 0 and {count - 1}"
        _refuse(sequence, "pruner", sequence.setup.pruner, problem)


def check_draft(sequence: Sequence, draft: Draft) -> None:
    """Check a drafter's window.

    Raises:
        GenerationError: it is no tree or too long, or has ids without an embedding.
    """
    if not (tokens := draft.tokens):
        return
    model, most, parents, probs = sequence.target.engine.model, sequence.setup.window, draft.parents, draft.probs
    known, problem = model.known_ids, None
    for token in tokens:
        if not (hasattr(token, "__index__") and 0 <= token < known):
            problem = f"proposed the token {token!r}, and the target's ids are 0 to {known - 1}"
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            problem = f"proposed a tree whose node {node} has the parent {parent}, which does not come before it"
    if len(parents) != len(tokens):
        problem = f"proposed {len(tokens)} tokens with {len(parents)} parents"
    elif len(tokens) > most and draft.is_chain:
        problem = f"proposed {len(tokens)} tokens, and a window has at most {most}"
    elif probs is not None and probs.shape != (shape := (len(tokens), model.vocabulary)):
        problem = f"proposed probabilities of shape {tuple(probs.shape)}, not {shape}"
    if problem is not None:
        _refuse(sequence, "drafter", sequence.setup.drafter, problem)


def check_verdict(sequence: Sequence, verdict: Verdict, draft: Draft) -> None:
    """Check an acceptance rule's verdict on a window.

    Raises:
        GenerationError: its path is none of the window, or the target has no such token.
    """
    path, token, count, known = verdict.path, verdict.token, len(draft.tokens), sequence.target.engine.model.known_ids
    problem = None
    for parent, node in zip((-1, *path), path, strict=False):
        if not (0 <= node < count and draft.parents[node] == parent):
            problem = f"accepted the path {tuple(path)}, which is none of the window of {count} tokens"
    if not (hasattr(token, "__index__") and 0 <= token < known):
        problem = f"returned the token {token!r}, and the target's ids are 0 to {known - 1}"
    if problem is not None:
        _refuse(sequence, "acceptance rule", sequence.setup.acceptance, problem)


def check_text(sequence: Sequence) -> None:
    """Check that a schedule has written a whole text, and no more.

    Raises:
        GenerationError: it has not.
    """
    tokens = sequence.token_ids
    if sequence.prefilled is None or not tokens:
        problem = "wrote no text"
    elif len(tokens) > (most := sequence.limits.max_new_tokens):
        problem = f"wrote {len(tokens)} tokens, and generate.max_new_tokens is {most}"
    elif not sequence.limits.is_finished(tokens):
        problem = f"stopped after {len(tokens)} tokens, before the end of the text"
    else:
        return
    raise GenerationError(
        f"{sequence.job.path}: the schedule {sequence.kind} {problem}",
        hint="correct the schedule, or choose another with schedule.kind",
        kind="schedule",
    )


def _refuse(sequence: Sequence, noun: str, part: object, problem: str) -> NoReturn:
    name = f"{type(part).__module__}.{type(part).__qualname__}"
    raise GenerationError(
        f"{sequence.job.path}: the {noun} {name} {problem}",
        hint=f"correct the {noun}, or choose another with {_KEYS[noun]}",
        kind=_KEYS[noun].partition(".")[0],
    )
