import pytest

from tests.pruning.given import visual_tokens
from vidspec.pruning.base import Signals
from vidspec.pruning.pruners.window import WindowPruner


@pytest.mark.parametrize(
    ("place", "kept"),
    [("front", [0, 1, 2, 16]), ("middle", [6, 7, 8, 16]), ("end", [13, 14, 15, 16])],
)
def test_places(place, kept):
    visual = visual_tokens(4, 2, 2)
    assert WindowPruner(place)(Signals(visual), 0.75).tolist() == kept


def test_the_middle_is_the_default_and_is_centred():
    visual = visual_tokens(3, 3, 3, newline=False)
    assert WindowPruner()(Signals(visual), 0.8).tolist() == [11, 12, 13, 14, 15]


def test_a_budget_of_one_is_the_newline():
    for place in ("front", "middle", "end"):
        assert WindowPruner(place)(Signals(visual_tokens(2, 2, 2)), 0.99).tolist() == [8]
