from functools import cache

import pytest


@pytest.fixture(scope="module")
def pairs():
    """Built-in pairs by name, loaded once."""
    from tests.drafting.built_in_pairs import BuiltInPair

    return cache(BuiltInPair)
