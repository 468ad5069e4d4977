"""Chains and trees of drafted tokens in replayed passes: no pass waits for the one before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch

from vidspec.engine.device import read_back
from vidspec.engine.graphs.choice import ChoiceStep, chain_kind
from vidspec.engine.graphs.passes import PlannedPass, ReplayedPasses, padded_rows
from vidspec.engine.graphs.step import GraphStep, HostTable, chained_columns

if TYPE_CHECKING:
    from vidspec.engine.requests import StaticTree
    from vidspec.engine.rows import ChainRule, Rows


class _PlannedChains(NamedTuple):
    """The passes of chains after the first one.

    Attributes:
        step, replay: the pass, and the function that runs it.
        columns, last: in the host's table, that of the pass and the last row of each chain in its first pass.
    """

    step: GraphStep
    replay: Callable[[], None]
    columns: int
    last: int


class _TreeLevel(NamedTuple):
    """The pass over one level of trees.

    Attributes:
        width: number of likeliest tokens of each row.
        picks: in the host's table, the ``picked`` chosen ones of these, and again those that are read next.
    """

    planned: PlannedPass
    width: int
    picks: int
    picked: int


def replay_chains(
    passes: ReplayedPasses,
    batch: Sequence[Rows],
    gammas: Sequence[int],
    vocabulary: int,
    rules: Sequence[ChainRule] | None = None,
) -> list[tuple[list[int], torch.Tensor | None]] | None:
    """Continue sequences as ``Engine.chain``: one pass per new token; the host waits for the last only.

    Args:
        passes: of the drafting decoder.
        batch: the first rows of each sequence, which are replayable.
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
    order = sorted(range(len(batch)), key=gammas.__getitem__, reverse=True)  # those of one token are idle, and last
    with passes.on_device():
        first = passes.plan_pass(batch, vocabulary, table := HostTable())
        following = _plan_chains(passes, first, [gammas[at] for at in order], order, vocabulary, table)
        if rules is not None and kind is not None:
            choice, choose = passes.choice(following.step, kind)
            plan = choice.plan_chains([rules[at] for at in order], max(gammas), table)
        passes.run_pass(first, table)
        last = _begin_chains(passes.decoder.depth, first, following, table)
        if rules is None or kind is None:
            numbers, probs = _greedy_tokens(following, first.step.tokens.index_select(0, last), max(gammas)), None
        else:
            choice.begin(plan, table)
            torch.index_select(first.step.logits, 0, last, out=following.step.logits[: len(batch)])
            numbers, probs = _chosen_tokens(following, choice, choose, len(batch), max(gammas))
    by_chain = list(zip(*numbers, strict=True))
    drafted: list[tuple[list[int], torch.Tensor | None]] = [([], None)] * len(batch)
    for place, at in enumerate(order):
        tokens = list(by_chain[place][: gammas[at]])
        if -1 in tokens:
            return None
        drawn = rules is not None and rules[at].sampling is not None
        drafted[at] = tokens, probs[: gammas[at], place] if drawn and probs is not None else None
        batch[at].span.length += gammas[at] - 1
    return drafted


def _plan_chains(
    passes: ReplayedPasses,
    first: PlannedPass,
    gammas: Sequence[int],
    order: Sequence[int],
    vocabulary: int,
    table: HostTable,
) -> _PlannedChains:
    """Return the passes of chains after the first one; their rows are in ``order``, as are ``gammas``."""
    step, replay = passes.step(padded_rows(len(order)), vocabulary, chained=True)
    ends = list(accumulate(first.sizes))
    last, left = [ends[at] - 1 for at in order], [gamma - 1 for gamma in gammas if gamma > 1]
    axes, host = passes.decoder.axes, table.host(first.columns)
    columns = table.add(chained_columns(host, last[: len(left)], left, axes, step.idle))
    return _PlannedChains(step, replay, columns, table.add(last))


def _begin_chains(depth: int, first: PlannedPass, chains: _PlannedChains, table: HostTable) -> torch.Tensor:
    """Set the rows of chains after their first pass; return the last row of each in it."""
    step, last = chains.step, table[chains.last]
    step.table.copy_(table[chains.columns])
    if step.states is not None:
        entering = first.step.entering[depth]
        torch.index_select(entering, 0, last, out=step.states[: len(last)])
    return last


def replay_trees(passes: ReplayedPasses, trees: Sequence[StaticTree], vocabulary: int) -> list[list[int]]:
    """Grow trees as ``Engine.trees``, one pass per level; the host waits for the last only."""
    grown, levels = list[torch.Tensor](), list[_TreeLevel]()
    order: list[tuple[int, int]] = []  # tree and node of each token
    tokens = states = None
    table, lengths, rows = HostTable(), [tree.span.length for tree in trees], dict[tuple[int, int], int]()
    with passes.on_device():
        for number in range(max(len(tree.levels) for tree in trees)):
            levels.append(_plan_level(passes, trees, number, lengths, vocabulary, table, order, rows))
        for level in levels:
            step, sizes = passes.run_pass(level.planned, table, tokens, states)
            states = None if step.states is None else step.entering[passes.decoder.depth]
            best = step.logits[: sum(sizes)].topk(level.width).indices.view(-1)
            chosen = best.index_select(0, table[level.picks])
            if step.inputs is not None:
                chosen = step.inputs.ids.index_select(0, chosen)
            grown.append(chosen[: level.picked])
            tokens = chosen[level.picked :]
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
    rows: dict[tuple[int, int], int],
) -> _TreeLevel:
    """Return the pass over one level of trees.

    Args:
        passes: of the drafting decoder.
        trees: all trees; some may have fewer levels.
        number: of the level.
        lengths: entries of each sequence before the pass; they are advanced.
        vocabulary: number of logits to keep.
        table: receives the host's data.
        order: receives tree and node of each token that the level adds.
        rows: receives the row of each tree's node in its pass.
    """
    growing = [(at, tree) for at, tree in enumerate(trees) if number < len(tree.levels)]
    batch = [tree.level_rows(number) for _, tree in growing]
    planned = passes.plan_pass(batch, vocabulary, table, [lengths[at] for at, _ in growing])
    if number and planned.states is not None:
        places = [rows[at, tree.parents[node]] for at, tree in growing for node in tree.levels[number]]
        planned = planned._replace(states=table.add(places))
    width, picks, following = max([one.top for one in batch]), list[int](), list[int]()
    for (at, tree), end, size in zip(growing, accumulate(planned.sizes), planned.sizes, strict=True):
        lengths[at] += size
        nodes = tree.levels[number]
        for row, node in enumerate(nodes, end - len(nodes)):
            rows[at, node] = row
            for child in tree.children[node]:
                picks.append(row * width + tree.ranks[child])
                following += picks[-1:] if child in tree.children else ()
                order.append((at, child))
    return _TreeLevel(planned, width, table.add([*picks, *following]), len(picks))


def _greedy_tokens(chains: _PlannedChains, tokens: torch.Tensor, longest: int) -> list[list[int]]:
    """Return the likeliest tokens of chains that begin with ``tokens``, by step."""
    step, count = chains.step, len(tokens)
    drafted = tokens.new_empty(longest, count)
    drafted[0].copy_(tokens)
    step.table[0, :count].copy_(tokens)
    for index in range(1, longest):
        chains.replay()
        drafted[index].copy_(step.tokens[:count])
    return read_back(drafted)


def _chosen_tokens(
    chains: _PlannedChains, choice: ChoiceStep, choose: Callable[[], None], count: int, longest: int
) -> tuple[list[list[int]], torch.Tensor | None]:
    """Return the tokens of chains by step, the first ones by the logits that are there, and their distributions."""
    probs = None
    if choice.kind.cuts is not None:
        probs = torch.empty(longest, count, chains.step.vocabulary, device=chains.step.logits.device)
    for index in range(longest):
        if index:
            chains.replay()
        choose()
        if probs is not None and choice.chosen.probs is not None:
            probs[index].copy_(choice.chosen.probs[:count])
    return read_back(choice.record[:longest]), probs
