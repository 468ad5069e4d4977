import pytest


@pytest.fixture(scope="module")
def pairs(forked_drafts):
    """A pair and its draft process for all tests of a file."""
    from tests.decoding.workers.pairs import Pairs

    pairs = Pairs()
    yield pairs
    pairs.close()
