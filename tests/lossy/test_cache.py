"""Layers of different lengths, and layers that read a chosen part."""

import pytest
import torch

from vidspec.lossy.cache import ChosenEntries, LossyCache


def entries(n, seed):
    rng = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, 2, n, 3, generator=rng) for _ in range(2))


def test_each_layer_has_its_own_length():
    cache = LossyCache(2)
    for layer, rows in enumerate((5, 2)):
        cache.reserve(layer, rows + 2)
        cache.update(*entries(rows, layer), layer)
    for layer in range(2):
        keys, _ = cache.update(*entries(2, 9), layer)
        assert keys.shape[2] == (7, 4)[layer]
    assert cache.length == 7 and cache.lengths == (7, 4) and cache.nbytes() == (7 + 4) * 2 * 2 * 3 * 4
    cache.rollback(6)
    assert cache.lengths == (6, 3)
    for length in (7, 2):
        with pytest.raises(ValueError, match="cannot roll back"):
            cache.rollback(length)
    cache.update(*entries(1, 9), 1)
    with pytest.raises(IndexError):
        cache.update(*entries(1, 9), 1)


def test_what_does_not_make_sense():
    cache = LossyCache(1)
    with pytest.raises(NotImplementedError):
        cache.gather(0, [0])
    with pytest.raises(NotImplementedError):
        cache.select(torch.tensor([0]), 1)


def test_later_layers_read_what_is_chosen():
    """Against the full buffers, over new choices, rollback and no new choice."""
    chosen = ChosenEntries(prompt=6)
    cache, full = LossyCache(2, chosen, whole=1), [entries(6, 0), entries(6, 1)]
    for layer in range(2):
        cache.reserve(layer, 20)
        assert torch.equal(cache.update(*full[layer], layer)[0], full[layer][0])
    choices = {0: [0, 2, 5], 3: [1, 2, 3, 5], 6: [4]}
    rows = []
    for step in range(9):
        if step in choices:
            rows = choices[step]
            chosen.choose(torch.tensor(rows))
        if step == 5:
            cache.rollback(cache.length - 2)
            full = [tuple(one[:, :, :-2] for one in pair) for pair in full]
        for layer in range(2):
            new = entries(1, 10 + step)
            full[layer] = tuple(torch.cat(both, dim=2) for both in zip(full[layer], new, strict=True))
            length = full[layer][0].shape[2]
            read = rows + list(range(6, length)) if layer else list(range(length))
            for found, expected in zip(cache.update(*new, layer), full[layer], strict=True):
                assert torch.equal(found, expected[:, :, read])
    assert cache.lengths == (13, 13)
