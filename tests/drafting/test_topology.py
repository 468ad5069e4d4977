"""Trees by the names of their nodes."""

import pytest

from vidspec.config.part_sections import TREE
from vidspec.drafting.static_tree import parse_tree


def test_the_tree_of_the_papers():
    nodes = parse_tree(TREE)
    assert len(nodes) == 25
    assert [sum(len(node) == depth for node in nodes) for depth in range(1, 7)] == [4, 8, 8, 3, 2, 0]
    assert nodes[0] == (0,) and (0, 2, 1) in nodes and (1, 0, 0) in nodes and (3, 0) in nodes


def test_nodes_come_level_by_level_whatever_the_order():
    assert parse_tree("00 1 0 10") == ((0,), (1,), (0, 0), (1, 0))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("", "nodes such as"), ("a", "nodes such as"), ("0 0", "twice"), ("0 10", "no parent 1"), ("-1", "nodes such as")],
)
def test_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_tree(text)
