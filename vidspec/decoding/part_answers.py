"""Checks of what pruners, drafters, acceptance rules and schedules return, which may be a plugin's.

A wrong answer could end the process of a GPU or change the text. It fails its clip, with one line that names the part.
Whether probabilities sum to 1 is not checked, as reading them would wait for the device.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

import torch

from vidspec.acceptance.base import Verdict
from vidspec.drafting.base import Draft, Drafter
from vidspec.errors import GenerationError
from vidspec.pruning.base import kept_count

if TYPE_CHECKING:
    from vidspec.decoding.sequence import Sequence

__all__ = ["check_draft", "check_drafter", "check_kept", "check_text", "check_verdict"]

#: Profile keys of the parts.
_KEYS = {"pruner": "prune.method", "drafter": "draft.kind", "acceptance rule": "accept.rule"}


def check_kept(sequence: Sequence, kept: object, count: int, alpha: float) -> None:
    """Check a pruner's answer: the indices of the visual tokens that it keeps, out of ``count``.

    Raises:
        GenerationError: they are not :func:`~vidspec.pruning.base.kept_count` sorted indices.
    """
    if not isinstance(kept, torch.Tensor) or kept.dim() != 1 or kept.dtype not in (torch.int64, torch.int32):
        _refuse(sequence, "pruner", sequence.setup.pruner, f"returned {_described(kept)}, not (K,) int64 indices")
    indices, wanted = tuple(kept.tolist()), kept_count(count, alpha)
    if len(indices) != wanted:
        problem = f"kept {len(indices)} of {count} visual tokens, and prune.alpha {alpha:g} keeps {wanted}"
        _refuse(sequence, "pruner", sequence.setup.pruner, problem)
    if indices[0] < 0 or indices[-1] >= count or any(first >= second for first, second in pairwise(indices)):
        problem = f"returned indices that are not sorted, each once, between 0 and {count - 1}"
        _refuse(sequence, "pruner", sequence.setup.pruner, problem)


def check_drafter(sequence: Sequence, drafter: object) -> Drafter:
    """Return the drafter that its kind has opened for a clip.

    Raises:
        GenerationError: it is no Drafter.
    """
    if not isinstance(drafter, Drafter):
        _refuse(sequence, "drafter", sequence.setup.drafter, f"opened {_described(drafter)}, not a Drafter")
    return drafter


def check_draft(sequence: Sequence, draft: object) -> None:
    """Check a drafter's window.

    Raises:
        GenerationError: it is none, or has ids without an embedding, which would end the process of a GPU.
    """
    if not isinstance(draft, Draft):
        _refuse(sequence, "drafter", sequence.setup.drafter, f"proposed {_described(draft)}, not a Draft")
    if not (tokens := draft.tokens):
        return
    parents, probs, model, most = draft.parents, draft.probs, sequence.target.engine.model, sequence.setup.window
    known = model.known_ids
    for token in tokens:
        if not hasattr(token, "__index__"):
            _refuse(sequence, "drafter", sequence.setup.drafter, f"proposed {token!r}, which is no token id")
        if not 0 <= token < known:
            problem = f"proposed the token {token}, and the target's ids are 0 to {known - 1}"
            _refuse(sequence, "drafter", sequence.setup.drafter, problem)
    if len(parents) != len(tokens):
        problem = f"proposed {len(tokens)} tokens with {len(parents)} parents"
        _refuse(sequence, "drafter", sequence.setup.drafter, problem)
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            problem = f"proposed a tree whose node {node} has the parent {parent}, which does not come before it"
            _refuse(sequence, "drafter", sequence.setup.drafter, problem)
    if len(tokens) > most and draft.is_chain:
        problem = f"proposed {len(tokens)} tokens, and a window has at most {most}"
        _refuse(sequence, "drafter", sequence.setup.drafter, problem)
    if probs is not None and probs.shape != (shape := (len(tokens), model.vocabulary)):
        problem = f"proposed probabilities of shape {tuple(probs.shape)}, not {shape}"
        _refuse(sequence, "drafter", sequence.setup.drafter, problem)


def check_verdict(sequence: Sequence, verdict: object, draft: Draft) -> Verdict:
    """Return an acceptance rule's verdict on a window.

    Raises:
        GenerationError: it is none, its path is none of the window, or the target has no such token.
    """
    if not isinstance(verdict, Verdict):
        problem = f"returned {_described(verdict)}, not a Verdict"
        _refuse(sequence, "acceptance rule", sequence.setup.acceptance, problem)
    path, count, known = verdict.path, len(draft.tokens), sequence.target.engine.model.known_ids
    for parent, node in zip((-1, *path), path, strict=False):
        if not (0 <= node < count and draft.parents[node] == parent):
            problem = f"accepted the path {tuple(path)}, which is none of the window of {count} tokens"
            _refuse(sequence, "acceptance rule", sequence.setup.acceptance, problem)
    if not (hasattr(verdict.token, "__index__") and 0 <= verdict.token < known):
        problem = f"returned the token {verdict.token!r}, and the target's ids are 0 to {known - 1}"
        _refuse(sequence, "acceptance rule", sequence.setup.acceptance, problem)
    return verdict


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


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
    return "None" if value is None else f"a {type(value).__name__}"


def _refuse(sequence: Sequence, noun: str, part: object, problem: str) -> NoReturn:
    name = f"{type(part).__module__}.{type(part).__qualname__}"
    raise GenerationError(
        f"{sequence.job.path}: the {noun} {name} {problem}",
        hint=f"correct the {noun}, or choose another with {_KEYS[noun]}",
        kind=_KEYS[noun].partition(".")[0],
    )
