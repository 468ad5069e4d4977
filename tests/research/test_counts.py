"""Counts of a decoding pass, on models that are small enough to be counted by hand."""

from __future__ import annotations

import pytest
import torch

from research.counts import counted, shared, table
from research.random_decoder import engine_of, language
from research.sizes import SIZES, Size
from vidspec.engine.rows import Rows

pytestmark = pytest.mark.full

SMALL = Size(layers=3, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=300)


def test_a_replayed_pass_by_hand():
    """A block: norm, residual with norm, four products, rotation, the entries' copy, attention in two, activation.
    Around them: embedding, angles in six, norm, head, argmax, feedback in two."""
    found = counted(SMALL, "fused", 500)
    assert found.launches == 3 * 11 + 12 and found.products == 3 * 4 + 1
    assert found.reads == 0 and found.per_pass == 0 and found.allocated > 0


def test_the_stock_modules_launch_more_and_allocate():
    stock, fused = counted(SMALL, "stock", 500), counted(SMALL, "fused", 500)
    assert stock.launches > 2 * fused.launches and stock.products == 3 * 7 + 1
    assert stock.per_pass == stock.allocated > 0 and stock.reads == 1


@pytest.mark.parametrize("kind", ["stock", "fused"])
def test_counts_do_not_depend_on_lengths(kind):
    short, long = counted(SMALL, kind, 10), counted(SMALL, kind, 9000)
    assert short.kernels == long.kernels and short.allocated == long.allocated
    assert long.cache - short.cache == 8990 * 2 * 3 * 2 * 16 * 2  # keys and values, layers, KV heads, width, bytes


def test_bytes_of_weights():
    inner = 64 * (64 + 2 * 32) + (64 + 2 * 32) + 64 * 64 + 3 * 64 * 96 + 2 * 64
    assert counted(SMALL, "fused", 1).weights == 2 * (3 * inner + 64 + 300 * 64)


def test_published_sizes():
    """Of 7B, as its own card says: 7.61 billion parameters, 6.53 without both embeddings."""
    found = counted(SIZES["7B"], "fused", 25_000)
    assert found.weights / 2 == pytest.approx(7.61e9 - 152064 * 3584, rel=0.002)
    lines = table(["0.5B"]).splitlines()
    assert len(lines) == 6 and "| 0.5B | fused | " in lines[3] and "0.0 MiB (" in lines[3]
    assert "| 0.5B | fused, int8 | " in lines[4] and "| 0.5B | fused, int4 | " in lines[5]


@pytest.mark.parametrize(("weights", "bytes_"), [("int8", 1), ("int4", 0.5 + 3 / 64)])
def test_a_pass_of_quantised_weights_launches_no_more_than_one_of_bfloat16(weights, bytes_):
    """A draft's pass (``self-int8``, ``self-int4``): a product is one kernel, with its bias and what it is added to."""
    plain, found = (counted(SIZES["7B"], "fused", 25_000, weights=one) for one in (None, weights))
    assert found.launches <= 1.1 * plain.launches and found.products == plain.products
    assert found.launches == plain.launches
    assert found.reads == 0 and found.per_pass == 0
    assert found.weights == pytest.approx(plain.weights / 2 * bytes_, rel=0.01)


def test_a_pass_of_sixteen_clips_is_launched_once_and_read_once():
    """Windows of 6 rows: nothing but the read numbers grows with clips."""
    found, alone = shared(SIZES["7B"], 16, 6, 25_000), shared(SIZES["7B"], 1, 6, 25_000)
    assert found.launches <= 330 and found.reads == 1
    assert found.launches <= alone.launches + 1  # one copy joins the clips' logits


@torch.inference_mode()
def test_a_model_of_nothing_decodes():
    model = language(SMALL, torch.device("cpu"), torch.float32)
    engine = engine_of(model)
    span = engine.open(8)
    assert engine.run([Rows(span, [1, 2, 3])])[0].logits.shape == (3, 300)
    assert len(engine.greedy([(span, [4], 3)])[0]) == 3
