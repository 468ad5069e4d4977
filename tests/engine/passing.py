"""A pass of one sequence, as most tests want it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vidspec.engine.forward import Engine
from vidspec.engine.rows import PassResult, PrefillResult, Rows
from vidspec.engine.slab import KVSpan


def forward(
    engine: Engine, read: PrefillResult | KVSpan, token_ids: Sequence[int], parents: Sequence[int] | None = None
) -> PassResult:
    """Append tokens, or nodes of a tree, to a sequence."""
    span = read.span if isinstance(read, PrefillResult) else read
    return engine.run([Rows(span, list(token_ids), parents)])[0]


@torch.inference_mode()
def poison(read: PrefillResult | KVSpan) -> None:
    """Make every entry of a sequence beyond its length NaN: none of them must ever be read."""
    span = read.span if isinstance(read, PrefillResult) else read
    for layer in span.slab.layers(span.start + span.length, span.start + span.room):
        layer[:] = float("nan")


def unreplayed(engine: Engine, batch: Sequence[Rows]) -> list[PassResult]:
    """A pass kernel by kernel, whatever could be replayed; the sequences are as before it."""
    graphs, engine.model.decoder.graphs = engine.model.decoder.graphs, None
    found = engine.run(batch)
    for rows in batch:
        rows.span.rollback(rows.span.length - len(rows))
    engine.model.decoder.graphs = graphs
    return found
