from functools import cache

import pytest


@pytest.fixture(scope="module")
def pairs():
    """Built-in pairs by name, loaded once."""
    from tests.drafting.built_in_pairs import BuiltInPair

    return cache(BuiltInPair)


@pytest.fixture(scope="module")
def engine():
    """A small random draft."""
    from tests.checkpoints import checkpoint
    from vidspec.engine.forward import Engine
    from vidspec.models.loading import load_model
    from vidspec.models.placement import resolve_placement

    return Engine(load_model(str(checkpoint("readable", noise=0.05)), resolve_placement("cpu", "float32")))
