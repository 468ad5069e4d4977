"""The bookkeeping of trees, on a real model: side branches leave the draft's cache, the committed path stays."""

from itertools import pairwise

import pytest
import torch

from tests.decoding.toys import emit_window, proposed
from tests.engine.passing import forward, poison
from vidspec.config.part_sections import TREE
from vidspec.drafting.static_tree import parse_tree
from vidspec.drafting.tree import TreeDrafter
from vidspec.models.base import Pixels

ROOM = 80


@pytest.fixture(scope="module", params=["everything seen", "pruned"])
def prefix(request, engine):
    model, frames = engine.model, 5
    values = torch.randn(frames, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    whole = model.prefix(model.encode(Pixels(values, (frames, 4, 4), tuple(map(float, range(frames))))), "What moves?")
    return whole if request.param == "everything seen" else whole.keep(torch.tensor([0, 3, 4, 11, 20]))


def scratch(engine, prefix, emitted):
    return forward(engine, engine.prefill(prefix, ROOM), emitted).logits[-1]


def expected_tree(engine, prefix, emitted, nodes):
    """Return each node's token, from a new cache and its path alone."""
    tokens = {}
    for node in nodes:
        path = [tokens[node[:length]] for length in range(1, len(node))]
        ranked = scratch(engine, prefix, [*emitted, *path]).sort(descending=True, stable=True).indices
        tokens[node] = int(ranked[node[-1]])
    return tuple(tokens[node] for node in nodes)


PATHS = [(), (1, 7, 19), (0, 4, 12, 20, 24)]
OTHERS = [(0,), (3,), (1, 8), (0, 4, 12), (0, 4, 12, 20), (0, 4, 12, 20, 23)]


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("path", [*PATHS, *(pytest.param(one, marks=pytest.mark.full) for one in OTHERS)], ids=str)
def test_after_any_commit_it_proposes_the_best_children(engine, prefix, path):
    nodes = parse_tree(TREE)
    names = ["".join(map(str, nodes[node])) for node in path]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(names))
    drafter = TreeDrafter(engine, engine.prefill(prefix, ROOM).span, nodes)
    drafter.begin(7)
    draft = proposed(drafter, 5)
    assert draft.tokens == expected_tree(engine, prefix, [7], nodes) and draft.probs is None
    assert drafter.forwards == 5  # the root, and four levels with children
    emit_window(drafter, draft, path, 99)
    emitted = [7, *(draft.tokens[node] for node in path), 99]
    assert drafter.span.length <= prefix.length + len(emitted) - 1
    poison(drafter.span)
    assert proposed(drafter, 5).tokens == expected_tree(engine, prefix, emitted, nodes)
    poison(drafter.span)


def test_depth_is_cut_at_the_end_of_the_text(engine, prefix):
    nodes = parse_tree(TREE)
    drafter = TreeDrafter(engine, engine.prefill(prefix, ROOM).span, nodes)
    drafter.begin(7)
    draft = proposed(drafter, 0)
    assert draft.tokens == () and drafter.forwards == 0
    emit_window(drafter, draft, (), 8)
    draft = proposed(drafter, 2)
    assert len(draft.tokens) == 12 and max(draft.depths) == 2
    assert draft.tokens == expected_tree(engine, prefix, [7, 8], nodes[:12])
