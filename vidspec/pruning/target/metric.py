"""Metric A of ParallelVLM's Table 2: how much of a pruned target's text the target itself would have written."""

from __future__ import annotations

from collections.abc import Sequence

from vidspec.engine.forward import Engine
from vidspec.engine.rows import Rows
from vidspec.models.base import Prefix

__all__ = ["acceptance_share", "accepted_by_target", "wanted_tokens"]


def acceptance_share(token_ids: Sequence[int], wanted: Sequence[int]) -> float:
    """The share of tokens that are the full-context target's choice at their place (metric A, ParallelVLM 5.1).

    Args:
        token_ids: n tokens of the pruned target, at least one.
        wanted: of each place the target's greedy choice behind the pruned target's own tokens before it.

    Raises:
        ValueError: there are none, or the two differ in length.
    """
    if not token_ids or len(token_ids) != len(wanted):
        raise ValueError(f"cannot compare {len(token_ids)} tokens with {len(wanted)}")
    return sum(one == other for one, other in zip(token_ids, wanted, strict=True)) / len(token_ids)


def wanted_tokens(engine: Engine, prefix: Prefix, token_ids: Sequence[int]) -> list[int]:
    """What a target with its whole prompt would say at each place of a text, given the text before it.

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


def accepted_by_target(engine: Engine, prefix: Prefix, token_ids: Sequence[int]) -> float:
    """Metric A of one text; arguments as for :func:`wanted_tokens`."""
    return acceptance_share(token_ids, wanted_tokens(engine, prefix, token_ids))
