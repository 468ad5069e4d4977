"""Parses static draft trees. No torch, so profiles are checked without it."""

from __future__ import annotations

from functools import cache

#: Ranks from the root down: (0, 1) is the second-best successor of the best first token.
TreePath = tuple[int, ...]


@cache
def parse_tree(text: str) -> tuple[TreePath, ...]:
    """Parse the nodes of a tree, level by level, from words such as ``0 1 00 01 10``.

    Each digit is the rank of a child under its parent: ``01`` is the second-best successor of the best first token.

    Raises:
        ValueError: a node has no parent, or is named twice.
    """
    words = [word for word in text.split() if word != "|"]
    if not words or any(not word.isdecimal() or not word.isascii() for word in words):
        raise ValueError("must be nodes such as 0 1 00 01, each digit the rank of a child")
    nodes = sorted({tuple(int(digit) for digit in word) for word in words}, key=lambda node: (len(node), node))
    if len(nodes) != len(words):
        raise ValueError("names a node twice")
    for node in nodes:
        if len(node) > 1 and node[:-1] not in nodes:
            name = "".join(map(str, node))
            raise ValueError(f"node {name} has no parent {name[:-1]}; nearest valid choice: name both")
    return tuple(nodes)
