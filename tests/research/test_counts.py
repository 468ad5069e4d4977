"""Counts of a decoding pass, on models that are small enough to be counted by hand."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from research.prediction.drafts import HEAD_LAUNCHES
from research.prediction.stock import cost_of_stock
from research.random_decoder import Language, engine_of, language
from research.sizes import SIZES, Size
from tests.checkpoints import eagle3, gemma4, qwen
from tests.engine.counts import counted, counted_eager, counted_head, shared
from vidspec.engine.decoders import decoder_of
from vidspec.engine.head_states import StateInputs
from vidspec.engine.rows import Rows
from vidspec.models.base import families
from vidspec.models.eagle3 import Eagle3Decoder, StateProjection, head_config
from vidspec.models.loading import empty_model

pytestmark = pytest.mark.full

SMALL = Size(layers=3, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=300)


def test_a_replayed_pass_by_hand():
    """A block: norm, residual with norm, four products, rotation into the cache, attention in two, activation.
    Around them: embedding, angles in six, norm, head, argmax, feedback in two."""
    found = counted(SMALL, "fused", 500)
    assert found.launches == 3 * 10 + 13 and found.products == 3 * 4 + 1
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
    """The 7B's own card: 7.61 billion parameters, 6.53 without both embeddings."""
    found = counted(SIZES["7B"], "fused", 25_000)
    assert found.weights / 2 == pytest.approx(7.61e9 - 152064 * 3584, rel=0.002)


@pytest.mark.parametrize(("weights", "bytes_"), [("int8", 1), ("int4", 0.5 + 4 / 64)])
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
    assert found.launches <= 300 and found.reads == 1
    assert found.launches <= alone.launches + 1  # one copy joins the clips' logits


def test_a_heads_pass_launches_what_predictions_assume():
    tensors = {key: one.to("meta", torch.bfloat16) for key, one in eagle3.tensors(qwen.QwenKind()).items()}
    decoder = Eagle3Decoder(head_config(eagle3.config(qwen.QwenKind())), tensors)
    embedding, ids = torch.empty(1000, eagle3.HIDDEN, dtype=torch.bfloat16, device="meta"), tensors["d2t"].long()
    inputs = StateInputs(eagle3.HIDDEN, StateProjection(tensors, 1e-6), ids, 1000)
    decoder.bind(partial(torch.nn.functional.embedding, weight=embedding), inputs, "counted")
    assert counted_head(decoder, len(ids)).launches == HEAD_LAUNCHES


OWN_INPUTS, ONE_INPUT = gemma4.config(), gemma4.config(hidden_size_per_layer_input=0)
EXPERTS = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32}


@pytest.mark.parametrize(
    "config",
    [
        *(qwen.config(qwen.QwenKind(family)) for family in ("qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")),
        *(OWN_INPUTS, ONE_INPUT, gemma4.config(hidden_size_per_layer_input=0, num_kv_shared_layers=0, **EXPERTS)),
    ],
    ids=["qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "gemma4", "gemma4, one input", "gemma4, experts"],
)
def test_stock_blocks_launch_what_predictions_assume(config):
    """One row exactly; a window, and each clip after the second, to a kernel a block."""
    kind = families.get(config.model_type)
    made = empty_model(kind, config, torch.bfloat16)
    language = kind.language_of(made)
    decoder = decoder_of(language, made.lm_head, "stock")
    cost = cost_of_stock(language, made.lm_head, decoder)
    model = Language(decoder, torch.device("meta"), made.lm_head.out_features, 0, made.lm_head.out_features)
    found = {key: counted_eager(model, *key).launches for key in ((1, 1), (1, 5), (2, 1), (3, 1))}
    assert found[1, 1] == cost.launches
    assert found[1, 5] - found[1, 1] == pytest.approx(cost.eager.window, abs=decoder.depth)
    assert found[3, 1] - found[2, 1] == pytest.approx(cost.eager.clip, abs=1)


def test_entries_that_gemma_reads():
    """Three sliding blocks with two heads of 16 and two full ones of 32, one of each kind without keys of its own."""
    kind = families.get("gemma4")
    made = empty_model(kind, OWN_INPUTS, torch.bfloat16)
    language = kind.language_of(made)
    cost = cost_of_stock(language, made.lm_head, decoder_of(language, made.lm_head, "stock"))
    assert cost.windows == ((gemma4.WINDOW, 3 * 2 * 2 * 16 * 2),) and cost.entry == 2 * 2 * 2 * 32 * 2


@torch.inference_mode()
def test_a_model_of_nothing_decodes():
    model = language(SMALL, torch.device("cpu"), torch.float32)
    engine = engine_of(model)
    span = engine.open(8)
    assert engine.run([Rows(span, [1, 2, 3])])[0].logits.shape == (3, 300)
    assert len(engine.greedy([(span, [4], 3)])[0]) == 3
