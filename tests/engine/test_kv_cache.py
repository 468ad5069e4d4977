import pytest
import torch
from models.checkpoints import LAYERS, TIED, adapter, pixels

from vidspec.engine.forward import Engine, State
from vidspec.engine.kv_cache import KVCache


def entries(start, count, heads=2, width=3):
    """Keys whose entry i is full of i, and values of -i."""
    at = torch.arange(start, start + count, dtype=torch.float32)[None, None, :, None]
    keys = at.expand(1, heads, count, width).clone()
    return keys, -keys


def filled(count, capacity=10, layers=3):
    cache = KVCache(layers, capacity)
    for layer in range(layers):
        cache.update(*entries(0, count), layer)
    return cache


def held(cache, layer=0):
    """What the next pass would read, by appending one entry and looking at the others."""
    end = cache.length
    keys, values = cache.update(*entries(99, 1), layer)
    cache.layers[layer].length = end
    assert torch.equal(keys, -values) and keys.shape[2] == end + 1
    return keys[0, 0, :-1, 0].tolist()


def test_update_appends():
    cache = KVCache(2, 6)
    assert cache.length == 0 and cache.nbytes() == 0
    for layer in range(2):
        keys, values = cache.update(*entries(0, 4), layer)
        assert keys[0, 1, :, 2].tolist() == [0, 1, 2, 3] and values[0, 0, :, 0].tolist() == [0, -1, -2, -3]
    keys, _ = cache.update(*entries(4, 2), 0)
    assert keys.shape == (1, 2, 6, 3) and keys[0, 0, :, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert cache.length == cache.get_seq_length() == 6 and cache.layers[1].length == 4


def test_buffers_never_move():
    cache = filled(2)
    before = [layer.keys.data_ptr() for layer in cache.layers]
    for step in range(8):
        for layer in range(3):
            cache.update(*entries(2 + step, 1), layer)
    cache.rollback(3)
    cache.gather(1, [1])
    assert [layer.keys.data_ptr() for layer in cache.layers] == before


def test_capacity():
    cache = filled(8)
    with pytest.raises(IndexError, match="of 10 entries cannot take 11"):
        cache.update(*entries(8, 3), 0)
    assert cache.length == 8 and held(cache) == list(range(8))
    cache.update(*entries(8, 2), 0)
    assert cache.length == 10
    with pytest.raises(IndexError):
        cache.update(*entries(10, 1), 0)
    with pytest.raises(IndexError, match="cannot take 11"):
        KVCache(1, 10).update(*entries(0, 11), 0)


def test_nbytes():
    assert filled(1).nbytes() == 3 * 2 * (2 * 10 * 3) * 4
    cache = KVCache(1, 10)
    keys, values = entries(0, 1)
    cache.update(keys.bfloat16(), values.bfloat16(), 0)
    assert cache.nbytes() == 2 * (2 * 10 * 3) * 2 and cache.layers[0].keys.dtype == torch.bfloat16


def test_rollback():
    cache = filled(8)
    cache.rollback(8)
    assert cache.length == 8
    cache.rollback(5)
    assert [layer.length for layer in cache.layers] == [5] * 3
    keys, _ = cache.update(*entries(70, 2), 1)
    assert keys[0, 0, :, 0].tolist() == [0, 1, 2, 3, 4, 70, 71]
    cache.rollback(0)
    assert cache.length == 0


@pytest.mark.parametrize("length", [-1, 6])
def test_rollback_refuses(length):
    cache = filled(5)
    with pytest.raises(ValueError, match=f"of 5 entries to {length}"):
        cache.rollback(length)
    assert cache.length == 5


@pytest.mark.parametrize(
    "start, kept, left",
    [
        (3, [0, 2, 3], [0, 1, 2, 3, 5, 6]),
        (3, [], [0, 1, 2]),
        (3, [4], [0, 1, 2, 7]),
        (3, [0, 1, 2, 3, 4], list(range(8))),
        (0, [1, 3, 5, 6, 7], [1, 3, 5, 6, 7]),
        (8, [], list(range(8))),
        (2, torch.tensor([1, 2, 4]), [0, 1, 3, 4, 6]),
    ],
)
def test_gather(start, kept, left):
    cache = filled(8)
    cache.gather(start, kept)
    assert cache.length == len(left)
    assert [held(cache, layer) for layer in range(3)] == [left] * 3


@pytest.mark.parametrize("start, kept", [(3, [5]), (3, [-1]), (0, [8]), (9, []), (-1, [0])])
def test_gather_refuses(start, kept):
    cache = filled(8)
    with pytest.raises(ValueError):
        cache.gather(start, kept)
    assert held(cache) == list(range(8))


def test_what_transformers_asks():
    cache = filled(4)
    assert cache.get_mask_sizes(3, 0) == (7, 0)
    assert cache.layers[0].get_max_length() == 10
    cache.crop(-1)
    assert cache.length == 3
    cache.reset()
    assert cache.length == 0


TOKENS = [300, 41, 517, 77, 260, 123, 388]


@pytest.fixture(scope="module")
def engine():
    return Engine(adapter(TIED))


@pytest.fixture(scope="module")
def prefix(engine):
    return engine.model.prefix(engine.model.see(pixels(2)), "Describe the video.")


@torch.inference_mode()
def poison(cache):
    """NaN in every entry that is not in use."""
    for layer in cache.layers:
        for buffer in (layer.keys, layer.values):
            buffer[:, :, layer.length :] = float("nan")


def test_poisoned_entries_change_nothing(engine, prefix):
    """Gate 4 of losslessness: what was rejected is never read again, in one row, in several or under a tree mask."""
    clean, dirty = engine.prefill(prefix, room=20), engine.prefill(prefix, room=20)
    poison(dirty.cache)
    for state in (clean, dirty):
        engine.forward(state, [600, *TOKENS])
    for start, rows in ((3, 1), (4, 5), (5, 2), (2, 7), (0, 3)):
        logits = []
        for state in (clean, dirty):
            state.cache.rollback(prefix.length + start)
            if state is dirty:
                poison(dirty.cache)
            logits.append(engine.forward(state, TOKENS[:rows]).logits)
        assert torch.isfinite(logits[1]).all()
        assert torch.equal(*logits)
    logits = []
    for state in (clean, dirty):
        state.cache.gather(prefix.length, [0, 2])
        if state is dirty:
            poison(dirty.cache)
        mask = torch.zeros(1, 1, 2, state.length + 2)
        mask[..., 0, -1] = mask[..., 1, -2] = float("-inf")
        logits.append(engine.forward(state, TOKENS[:2], mask=mask).logits)
    assert torch.equal(*logits) and torch.isfinite(logits[1]).all()


def test_poison_would_be_seen(engine, prefix):
    state = engine.prefill(prefix, room=20)
    with torch.inference_mode():
        state.cache.layers[1].values[:, :, prefix.length - 1] = float("nan")
    assert not torch.isfinite(engine.forward(state, TOKENS[:1]).logits).all()


def test_gathered_tree_path_equals_a_fresh_run(engine, prefix):
    """Siblings 1 and 2 behind token 0, then 3 behind 2: keep 0, 2, 3 and go on."""
    model, state = engine.model, engine.prefill(prefix, room=20)
    base = prefix.length
    mask = torch.full((1, 1, 4, base + 4), float("-inf"))
    mask[..., :base] = 0
    for row, seen in enumerate([[0], [0, 1], [0, 2], [0, 2, 3]]):
        mask[..., row, [base + node for node in seen]] = 0
    depths = torch.tensor([[0, 1, 1, 2]]) + base
    with torch.inference_mode():
        model.run(model.embed(torch.tensor([TOKENS[:4]])), depths, state.cache, mask, None)
    state.cache.gather(base, [0, 2, 3])
    fresh: State = engine.prefill(prefix, room=20)
    engine.forward(fresh, [TOKENS[0], TOKENS[2], TOKENS[3]])
    assert state.length == fresh.length == base + 3
    for layer in range(LAYERS):
        for name in ("keys", "values"):
            ours, theirs = (getattr(one.cache.layers[layer], name)[:, :, : base + 3] for one in (state, fresh))
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    got, expected = (engine.forward(one, TOKENS[4:]).logits for one in (state, fresh))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


def test_generate_of_the_library_takes_the_cache(engine):
    """The stock greedy loop over this cache, and over its own, give the same tokens."""
    model = engine.model.model
    ids = torch.tensor([[300, 41, 517, 77]])
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    assert torch.equal(
        model.generate(ids, past_key_values=KVCache(LAYERS, 16), **options), model.generate(ids, **options)
    )


def test_selected_entries_are_copies(engine, prefix):
    """A pruned cache continues as its entries say, and neither cache sees what becomes of the other."""
    state = engine.prefill(prefix, room=20)
    rows = torch.tensor([0, 1, 2, 5, 7, prefix.length - 1])
    chosen = state.cache.select(rows, 10)
    assert (chosen.length, chosen.capacity) == (6, 10)
    for new, old in zip(chosen.layers, state.cache.layers, strict=True):
        assert torch.equal(new.keys[:, :, :6], old.keys[:, :, rows])
        assert torch.equal(new.values[:, :, :6], old.values[:, :, rows])
    poison(chosen)
    with torch.inference_mode():
        for layer in chosen.layers:
            layer.keys.fill_(float("nan"))
    assert torch.isfinite(engine.forward(state, TOKENS[:2]).logits).all()


def test_entries_selected_for_each_head(engine, prefix):
    cache = engine.prefill(prefix, room=20).cache
    heads = cache.layers[0].keys.shape[1]
    rows = [torch.randperm(prefix.length)[: heads * 3].reshape(heads, 3) for _ in cache.layers]
    chosen = cache.select_heads(rows, 5)
    for layer, (new, old) in enumerate(zip(chosen.layers, cache.layers, strict=True)):
        for head in range(heads):
            assert torch.equal(new.keys[0, head, :3], old.keys[0, head, rows[layer][head]])
            assert torch.equal(new.values[0, head, :3], old.values[0, head, rows[layer][head]])


def test_selecting_what_is_not_there(engine, prefix):
    cache = engine.prefill(prefix, room=20).cache
    with pytest.raises(ValueError, match="cannot select"):
        cache.select(torch.tensor([prefix.length]), 5)
    with pytest.raises(ValueError, match="cannot select"):
        cache.select(torch.arange(6), 5)
