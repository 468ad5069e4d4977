"""Rows of a batch give what each prompt gives alone, whatever lies in the gaps and behind the end."""

import pytest
import torch
from decoding import checkpoints
from models import checkpoints_qwen

from vidspec.engine.batch import BatchEngine, stack
from vidspec.engine.forward import Engine
from vidspec.models import loading
from vidspec.models.base import Pixels

PROMPT = "Describe the video."
ROOM = 24
CLOSE = {"rtol": 0, "atol": 1e-4}


def onevision(folder):
    model = loading.load(str(checkpoints.save(folder)), loading.placement("cpu", "float32"))
    shown = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return model, Pixels(shown, (5, 4, 4), tuple(map(float, range(5))))


def qwen(family):
    model = checkpoints_qwen.adapter(checkpoints_qwen.Kind(family))
    return model, checkpoints_qwen.pixels(model)


@pytest.fixture(scope="module", params=["llava_onevision", "qwen2_5_vl", "qwen3_vl"])
def case(request, tmp_path_factory):
    if request.param == "llava_onevision":
        model, pixels = onevision(tmp_path_factory.mktemp("model"))
    else:
        model, pixels = qwen(request.param)
    whole = model.prefix(model.see(pixels), PROMPT)
    prefixes = [
        model.text_prefix("\n", PROMPT),
        whole,
        whole.keep(torch.tensor([0, 3, 4, 11])),
        model.text_prefix("image: a red circle moves", PROMPT),
        model.prefix(model.see(pixels, pooled=True), PROMPT),
    ]
    return Engine(model), prefixes


def stacked(case):
    engine, prefixes = case
    return stack([engine.prefill(prefix, 0) for prefix in prefixes], ROOM)


def alone(case, token_ids):
    """(m, n, V), each prompt in a cache of its own."""
    engine, prefixes = case
    return torch.stack([engine.forward(engine.prefill(prefix, ROOM), token_ids).logits for prefix in prefixes])


TOKENS = [40, 41, 77, 77, 60, 123, 38, 90]


def test_prompts_differ_in_length(case):
    lengths = [prefix.length for prefix in case[1]]
    assert len(set(lengths)) >= 4
    state = stacked(case)
    assert state.length == max(lengths) and state.cache.capacity == max(lengths) + ROOM
    hidden = (state.mask[:, 0, 0] != 0).sum(-1).tolist()
    assert hidden == [max(lengths) - length for length in lengths]


@pytest.mark.parametrize("chunks", [[8], [1] * 8, [3, 1, 2, 2]], ids=str)
def test_rows_equal_single_rows(case, chunks):
    state, batch = stacked(case), BatchEngine(case[0].model)
    parts, rest = [], TOKENS
    for chunk in chunks:
        parts.append(batch.forward(state, rest[:chunk]))
        rest = rest[chunk:]
    logits = torch.cat(parts, dim=1)
    expected = alone(case, TOKENS)
    assert logits.shape == expected.shape == (5, 8, case[0].model.vocabulary)
    torch.testing.assert_close(logits, expected, **CLOSE)
    # The prompts must matter, or the test says nothing.
    apart = (expected[:, None] - expected[None]).abs().amax((-1, -2)) + torch.eye(5) * 9
    assert apart.min() > 0.05


def test_gaps_are_never_read(case):
    state, batch = stacked(case), BatchEngine(case[0].model)
    gap = state.mask[:, 0, 0] != 0
    with torch.inference_mode():
        for layer in state.cache.layers:
            for buffer in (layer.keys, layer.values):
                assert bool(buffer.transpose(1, 2)[:, : state.length][gap[:, : state.length]].eq(0).all())
                buffer.transpose(1, 2)[gap] = 50.0
    torch.testing.assert_close(batch.forward(state, TOKENS), alone(case, TOKENS), **CLOSE)


def test_rolled_back_entries_are_never_read(case):
    state, batch = stacked(case), BatchEngine(case[0].model)
    begun = state.length
    batch.forward(state, TOKENS)
    state.cache.rollback(begun + 3)
    with torch.inference_mode():
        for layer in state.cache.layers:
            layer.keys[:, :, state.length :] = float("nan")
            layer.values[:, :, state.length :] = float("nan")
    other = [99, 55, 44]
    torch.testing.assert_close(batch.forward(state, other), alone(case, [*TOKENS[:3], *other])[:, 3:], **CLOSE)
    assert state.length == begun + 6


def test_one_row_needs_no_gap(case):
    engine, prefixes = case
    state = stack([engine.prefill(prefixes[1], 0)], ROOM)
    assert not state.mask.any()
    logits = BatchEngine(engine.model).forward(state, TOKENS)
    torch.testing.assert_close(logits, alone((engine, prefixes[1:2]), TOKENS), **CLOSE)


def test_leaves_the_single_caches_as_they_were(case):
    engine, prefixes = case
    states = [engine.prefill(prefix, ROOM) for prefix in prefixes[:2]]
    BatchEngine(engine.model).forward(stack(states, ROOM), TOKENS)
    for at, state in enumerate(states):
        assert state.length == prefixes[at].length
        expected = alone((engine, prefixes[at : at + 1]), TOKENS)[0]
        torch.testing.assert_close(engine.forward(state, TOKENS).logits, expected, **CLOSE)


def test_takes_no_more_than_was_asked_for(case):
    state = stacked(case)
    batch = BatchEngine(case[0].model)
    batch.forward(state, [5] * ROOM)
    with pytest.raises(IndexError):
        batch.forward(state, [5])
