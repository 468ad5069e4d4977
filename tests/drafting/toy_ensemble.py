"""Several tables behind the interface of the engine, one for each context of an ensemble."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.decoding.toys import Table, ToyEngine
from vidspec.drafting.ensemble_chain import AdaptiveEnsembleChain, ContextErrors, EnsembleChain
from vidspec.engine.sampling import Sampling


def ensemble(
    tables: Sequence[Table], sampling: Sampling, rng: torch.Generator, rule: str = "equal", **evidence
) -> EnsembleChain:
    engine = ToyEngine(*tables)
    spans = [engine.open() for _ in tables]
    if rule == "equal":
        return EnsembleChain(engine, spans, sampling, rng)
    return AdaptiveEnsembleChain(engine, spans, sampling, rng, ContextErrors(rule, len(tables), **evidence))
