"""Chains and trees of drafted tokens in replayed passes: no pass waits for the one before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from vidspec.engine.choice_step import ChoiceStep, PlannedChoice, chain_kind
from vidspec.engine.device import read_back
from vidspec.engine.graph_step import GraphStep, chained_columns
from vidspec.engine.graphs import PlannedPass, ReplayedPasses, padded_rows
from vidspec.engine.host_table import HostTable

if TYPE_CHECKING:
    from vidspec.engine.choices import ChoiceKind
    from vidspec.engine.requests import StaticTree
    from vidspec.engine.rows import ChainRule, Rows

__all__ = ["replay_chains", "replay_trees"]


class _TreeLevel(NamedTuple):
    """The pass over one level of trees.

    Attributes:
        width: number of likeliest tokens of each row.
        picks, following: in the host's table, the chosen ones of these and the chosen that are read next.
    """

    planned: PlannedPass
    width: int
    picks: int
    following: int


#: The choice of chains' tokens, the function that makes it, and its data.
_ChainChoice: TypeAlias = tuple[ChoiceStep, Callable[[], None], PlannedChoice]


def replay_chains(
    passes: ReplayedPasses,
    batch: Sequence[Rows],
    gammas: Sequence[int],
    vocabulary: int,
    rules: Sequence[ChainRule] | None = None,
) -> list[tuple[list[int], torch.Tensor | None]] | None:
    """Continue sequences as ``Engine.chain``: one pass per new token; the host waits for the last only.

    Args:
        passes: of the decoder.
        batch: the first rows of each sequence; ``is_replayable`` must be true.
        gammas: number of tokens to add to each.
        vocabulary: number of logits to keep.
        rules: how the tokens are chosen; None for the likeliest ones.

    Returns:
        The new tokens and the distributions they were drawn from, None if they were not drawn; None if the host has
        to choose.
    """
    kind = None if rules is None else chain_kind(rules, gammas)
    if rules is not None and kind is None:
        return None
    for rows, gamma in zip(batch, gammas, strict=True):
        if rows.span.length + len(rows.token_ids) + gamma - 1 > rows.span.room:
            rows.span.check_room(len(rows.token_ids) + gamma - 1)
    order = sorted(range(len(batch)), key=lambda at: -gammas[at])  # those of one token are idle, and last
    with passes.on_device():
        table = HostTable()
        planned = passes.plan_pass(batch, vocabulary, table)
        step, replay = passes.step(padded_rows(len(batch)), vocabulary, chained=True)
        ends = list(accumulate(planned.sizes))
        last, left = [ends[at] - 1 for at in order], [gammas[at] - 1 for at in order if gammas[at] > 1]
        every = table.host(planned.columns)
        columns = table.add(chained_columns(every, last[: len(left)], left, passes.decoder.axes, step.idle))
        last_rows, choice = table.add(last), None
        if kind is not None and rules is not None:
            choice = _plan_chains(passes, step, kind, [rules[at] for at in order], max(gammas), table)
        first = passes.run_pass(planned, table)
        step.table.copy_(table[columns])
        places = table[last_rows]
        if step.states is not None:
            entering = first.entering[passes.decoder.depth]
            torch.index_select(entering, 0, places, out=step.states[: len(batch)])
        if choice is None:
            numbers, probs = _greedy_tokens(step, replay, first.tokens[places], max(gammas)), None
        else:
            torch.index_select(first.logits, 0, places, out=step.logits[: len(batch)])
            numbers, probs = _chosen_tokens(step, replay, choice, table, (max(gammas), len(batch)))
    drafted: list[tuple[list[int], torch.Tensor | None]] = [([], None)] * len(batch)
    for place, (at, every_token) in enumerate(zip(order, zip(*numbers, strict=True), strict=True)):
        tokens = list(every_token[: gammas[at]])
        if -1 in tokens:
            return None
        drawn = rules is not None and rules[at].sampling is not None and probs is not None
        drafted[at] = tokens, probs[: gammas[at], place] if drawn and probs is not None else None
        batch[at].span.length += gammas[at] - 1
    return drafted


def _greedy_tokens(step: GraphStep, replay: Callable[[], None], tokens: torch.Tensor, longest: int) -> list[list[int]]:
    """Return the likeliest tokens of chains that begin with ``tokens``, by step."""
    drafted = tokens.new_empty(longest, len(tokens))
    drafted[0].copy_(tokens)
    step.table[0, : len(tokens)].copy_(tokens)
    for index in range(1, longest):
        replay()
        drafted[index].copy_(step.tokens[: len(tokens)])
    return read_back(drafted)


def _plan_chains(
    passes: ReplayedPasses,
    step: GraphStep,
    kind: ChoiceKind,
    rules: Sequence[ChainRule],
    longest: int,
    table: HostTable,
) -> _ChainChoice:
    """Return the choice of the tokens of chains, see :meth:`ChoiceStep.plan_chains`."""
    choice, choose = passes.choice(step, kind)
    return choice, choose, choice.plan_chains(rules, longest, table)


def _chosen_tokens(
    step: GraphStep,
    replay: Callable[[], None],
    choice: _ChainChoice,
    table: HostTable,
    shape: tuple[int, int],
) -> tuple[list[list[int]], torch.Tensor | None]:
    """Return the tokens of chains by step, the first by the logits in ``step``, and the distributions.

    Args:
        step, replay: the chained pass.
        choice, table: of the tokens, and its data.
        shape: tokens of the longest chain, and number of chains.
    """
    chooser, choose, planned = choice
    chooser.begin(planned, table)
    probs = None
    if chooser.kind.cuts is not None:
        probs = torch.empty(*shape, step.vocabulary, device=step.table.device)
    for index in range(shape[0]):
        if index:
            replay()
        choose()
        if probs is not None and chooser.chosen.probs is not None:
            probs[index].copy_(chooser.chosen.probs[: shape[1]])
    return read_back(chooser.record[: shape[0]]), probs


def replay_trees(passes: ReplayedPasses, trees: Sequence[StaticTree], vocabulary: int) -> list[list[int]]:
    """Grow trees as ``Engine.trees``, one pass per level; the host waits for the last only."""
    grown, levels = list[torch.Tensor](), list[_TreeLevel]()
    order: list[tuple[int, int]] = []  # tree and node of each token
    tokens = states = None
    table, lengths = HostTable(), [tree.span.length for tree in trees]
    with passes.on_device():
        for number in range(max(len(tree.levels) for tree in trees)):
            levels.append(_plan_level(passes, trees, number, lengths, vocabulary, table, order))
        for planned, width, picks, following in levels:
            step = passes.run_pass(planned, table, tokens, states)
            states = None if step.states is None else step.entering[passes.decoder.depth]
            best = step.logits[: sum(planned.sizes)].topk(width).indices.view(-1)
            chosen = [best.index_select(0, table[part]) for part in (picks, following)]
            if step.inputs is not None:
                chosen = [step.inputs.ids.index_select(0, part) for part in chosen]
            grown.append(chosen[0])
            tokens = chosen[1]
        numbers = read_back(torch.cat(grown))
    answers = [[0] * len(tree.parents) for tree in trees]
    for (at, child), token in zip(order, numbers, strict=True):
        answers[at][child] = token
    return answers


def _plan_level(
    passes: ReplayedPasses,
    trees: Sequence[StaticTree],
    number: int,
    lengths: list[int],
    vocabulary: int,
    table: HostTable,
    order: list[tuple[int, int]],
) -> _TreeLevel:
    """Return the pass over one level of trees.

    Args:
        passes: of the decoder.
        trees: all trees; some may have fewer levels.
        number: of the level.
        lengths: entries of each sequence before the pass; they are advanced.
        vocabulary: number of logits to keep.
        table: receives the host's data.
        order: receives tree and node of each token that the level adds.
    """
    growing = [(at, tree) for at, tree in enumerate(trees) if number < len(tree.levels)]
    batch = [tree.level_rows(number) for _, tree in growing]
    planned = passes.plan_pass(batch, vocabulary, table, [lengths[at] for at, _ in growing])
    width, picks, following = max(rows.top for rows in batch), list[int](), list[int]()
    for (at, tree), end, size in zip(growing, accumulate(planned.sizes), planned.sizes, strict=True):
        lengths[at] += size
        # The states themselves come from the pass: only their rows are needed here.
        for row, child in tree.grow(number, end - len(tree.levels[number]), planned.step.states):
            picks.append(row * width + tree.ranks[child])
            following += picks[-1:] if child in tree.children else ()
            order.append((at, child))
    return _TreeLevel(planned, width, table.add(picks), table.add(following))
