"""Layers of different lengths, and layers that read a chosen part."""

import pytest
import torch

from vidspec.baselines.engine import PrunedSpan
from vidspec.engine.slab import Slab


def span(room, layers=2, whole=0):
    return PrunedSpan(Slab(2, 3, torch.float32, [torch.device("cpu")] * layers), room, whole=whole)


@torch.inference_mode()
def write(one, seed, rows):
    """Write a row and return the entries of each layer: (2, heads, rows, d)."""
    rng = torch.Generator().manual_seed(seed)
    given = []
    for into in one.entries_to_write(rows):
        given.append(torch.randn(into.shape, generator=rng))
        into.copy_(given[-1])
    return given


def test_each_layer_has_its_own_length():
    one = span(9)
    with torch.inference_mode():
        for layer, into in enumerate(one.entries_to_write(5)):
            into.fill_(layer)
    one.length, one.missing = 5, [0, 3]
    assert one.lengths == (5, 2)
    given = write(one, 9, 2)
    for layer, (keys, values) in enumerate(zip(*one.entries_to_read(2), strict=True)):
        assert keys.shape[2] == values.shape[2] == (7, 4)[layer]
        assert torch.equal(keys[0, :, -2:], given[layer][0]) and (keys[0, :, :-2] == layer).all()
    one.length += 2
    one.rollback(6)
    assert one.lengths == (6, 3)
    for length in (7, 2):
        with pytest.raises(ValueError, match="cannot roll back"):
            one.rollback(length)
    with pytest.raises(IndexError):
        one.entries_to_write(4)


def test_what_does_not_make_sense():
    with pytest.raises(NotImplementedError):
        span(3).gather(0, [0])
    with pytest.raises(NotImplementedError):
        span(3).select(torch.tensor([0]), 1)


def test_later_layers_read_what_is_chosen():
    """Against everything, over new choices, rollback and no new choice."""
    one = span(20, whole=1)
    full = write(one, 0, 6)
    one.length = 6
    choices = {0: [0, 2, 5], 3: [1, 2, 3, 5], 6: [4]}
    rows = []
    for step in range(9):
        if step == 5:
            one.rollback(one.length - 2)
            full = [layer[:, :, :-2] for layer in full]
        new = write(one, 10 + step, 1)
        full = [torch.cat(both, dim=2) for both in zip(full, new, strict=True)]
        if step in choices:  # in the middle of a pass: the first layer has decided
            rows = choices[step]
            one.choose(torch.tensor(rows), 6)
        length = full[0].shape[2]
        for half, layers in enumerate(one.entries_to_read(1)):
            for layer, found in enumerate(layers):
                read = rows + list(range(6, length)) if layer else list(range(length))
                assert torch.equal(found[0], full[layer][half][:, read])
        one.length += 1
    assert one.lengths == (13, 13)
