"""Sizes counted from configs, and the time of reading a clip that follows from them."""

import pytest

from research.gains import read_seconds
from research.prediction.sheets import DataSheet
from research.sizes import MODELS, SIZES, Model, Size, Tower
from vidspec.models.known_pairs import known_pairs

KNOWN = {model.name: model for pair in known_pairs() for model in (pair.target, pair.draft) if model is not None}

#: 2 layers of 4 heads, 2 of them for keys, of 2 numbers; a tower of 3 blocks, 1 of which sees the whole frame.
SMALL = Model(Size(2, 8, 4, 2, 16, 10), Tower(3, 4, 8, 2, 12, 9, 3, 1, 1, 8, 8))
BLOCKS = 2 * (8 * 16 + 16 + 8 * 8 + 3 * 8 * 16 + 16) + 8
TOWER = 3 * (4 * 16 + 2 * 32) + 48
BEHIND = 4 * 8 + 8 * 8


@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_published_models(name):
    assert MODELS[name].parameters == pytest.approx(KNOWN[name].parameters, rel=0.01)
    assert MODELS[name].language.kv_per_token == KNOWN[name].kv_per_token


def test_language_parameters_are_those_of_the_cards():
    """Qwen2.5's cards: 7.61, 32.5 (32.8 with what is not rounded) and 3.09 billion; 6.53 of 7B without embeddings."""
    assert SIZES["7B"].parameters == pytest.approx(7.61e9, rel=0.01)
    assert SIZES["7B"].blocks == pytest.approx(6.53e9, rel=0.01)
    assert SIZES["32B"].parameters == pytest.approx(32.5e9, rel=0.01)
    assert SIZES["3B"].parameters == SIZES["3B"].read == pytest.approx(3.09e9, rel=0.01)


def test_sizes_by_hand():
    language, tower = SMALL.language, SMALL.tower
    assert (language.blocks, language.read, language.parameters) == (BLOCKS, BLOCKS + 80, BLOCKS + 160)
    assert language.kv_per_token == 2 * 2 * 2 * 2
    assert language.prefill_flops(5) == 2 * BLOCKS * 5 + 2 * 2 * 8 * 25 + 2 * 80
    assert tower.parameters == TOWER + BEHIND
    assert tower.flops == 9 * (2 * TOWER + 4 * (2 * 3 + 9) * 4 + 2 * BEHIND)


def test_reading_a_clip_by_hand(monkeypatch):
    """Half of the operations are reached, of a tower at most those that were measured."""
    monkeypatch.setitem(MODELS, "small", SMALL)
    seen, read = SMALL.tower.flops * 2, SMALL.language.prefill_flops(392 + 64)
    device = DataSheet("toy", 1.0, 1000.0, 1.0)
    assert read_seconds("small", device, 392) == (seen + read) / 500
    fast = device._replace(flops=1560e12)
    assert read_seconds("small", fast, 392) == pytest.approx(seen / 390e12 + read / 780e12)
