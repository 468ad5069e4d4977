"""Several tables behind the interface of the batched engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from decoding.toys import Table, ToyCache

from vidspec.drafting.ensemble import AdaptiveEnsemble, Ensemble
from vidspec.drafting.ensemble_weights import Evidence
from vidspec.engine.sampling import Sampling


@dataclass
class ToyRows:
    """What all rows have read, behind prompts of no length."""

    offsets: torch.Tensor
    cache: ToyCache = field(default_factory=ToyCache)


class ToyBatch:
    """One table for each context."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = tables
        self.passes: list[int] = []

    def start(self) -> ToyRows:
        return ToyRows(torch.zeros(len(self.tables)))

    def forward(self, state: ToyRows, token_ids: Sequence[int]) -> torch.Tensor:
        assert token_ids, "a pass over nothing"
        self.passes.append(len(token_ids))
        rows = []
        for token in token_ids:
            state.cache.tokens.append(token)
            rows.append(torch.stack([table(tuple(state.cache.tokens)) for table in self.tables]))
        return torch.stack(rows, dim=1)


def ensemble(
    tables: Sequence[Table], sampling: Sampling, rng: torch.Generator, rule: str = "equal", **evidence
) -> Ensemble:
    batch = ToyBatch(tables)
    if rule == "equal":
        return Ensemble(batch, batch.start(), sampling, rng)
    return AdaptiveEnsemble(batch, batch.start(), sampling, rng, Evidence(rule, len(tables), **evidence))
