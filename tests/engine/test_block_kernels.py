"""Kernels of a block's elementwise operations by Triton's interpreter, and the decoder that takes them."""

from __future__ import annotations

import pytest
import torch

from tests.engine import standin, test_graphs
from tests.engine.families import case
from tests.tiers import full_but
from vidspec.engine import block_kernels
from vidspec.engine.block_kernels import BlockKernels, load_block_kernels, runs_triton, triton_problem
from vidspec.engine.forward import Engine
from vidspec.engine.graphs.passes import ReplayedPasses
from vidspec.engine.rotary import HeadNorms
from vidspec.engine.rows import Rows

pytest.importorskip("triton", reason="Triton, which comes with torch for GPUs, is not installed")
from vidspec.engine import kernel_elementwise
from vidspec.engine.kernel_elementwise import add_norm, norm, rotate, silu_product

pytestmark = pytest.mark.usefixtures("no_gradients")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOSE = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}
DTYPES = full_but([torch.float16], CLOSE)
KERNELS = BlockKernels(norm, add_norm, rotate, silu_product)


def numbers(*shape, dtype, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.full
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 896])
def test_residual_and_norm(dtype, width):
    residual, weight = numbers(5, width, dtype=dtype), numbers(width, dtype=dtype, seed=1)
    rows = numbers(5, width + 8, dtype=dtype, seed=2)[:, :width]
    summed, normed = add_norm(residual, rows, weight, 1e-6)
    close = {"rtol": CLOSE[dtype], "atol": CLOSE[dtype] / 8}
    torch.testing.assert_close(summed.double(), residual.double() + rows.double(), **close)
    expected = torch.nn.functional.rms_norm(summed.double(), (width,), weight.double(), 1e-6)
    torch.testing.assert_close(normed.double(), expected, **close)
    alone = torch.nn.functional.rms_norm(rows.double(), (width,), weight.double(), 1e-6)
    torch.testing.assert_close(norm(rows, weight, 1e-6).double(), alone, **close)


HEADS, KV_HEADS = 5, 2


@pytest.fixture(params=["few", "many"])
def any_rows(request, monkeypatch):
    """A program for each head, as for few rows, or for eight heads."""
    if request.param == "many":
        monkeypatch.setattr(kernel_elementwise, "_FEW", 0)


def rotation_of(width, dtype, by_axis=False):
    """Queries, keys and values as parts of wider rows, and tables, which are columns where there are several axes."""
    states = numbers(3, HEADS + 2 * KV_HEADS + 1, width, dtype=dtype)[:, :-1]
    angles = torch.randn(3, width // 2, generator=torch.Generator().manual_seed(1))
    cosine = torch.cat([angles, angles], 1).cos().to(DEVICE, dtype)[:, None]
    sine = torch.cat([-angles, angles], 1).sin().to(DEVICE, dtype)[:, None]
    if by_axis:
        cosine, sine = (one[:, 0].t().contiguous().t()[:, None] for one in (cosine, sine))
    return states, (cosine, sine)


@pytest.mark.full
@pytest.mark.sample(full=13)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 80, 128])
@pytest.mark.parametrize("by_axis", [False, True])
@pytest.mark.usefixtures("any_rows")
def test_rotation_in_place(dtype, width, by_axis):
    """Queries and keys are a part of each row, whose values stay."""
    states, (cosine, sine) = rotation_of(width, dtype, by_axis)
    turned, values = states[:, : HEADS + KV_HEADS].double(), states[:, HEADS + KV_HEADS :].clone()
    expected = turned * cosine.double() + turned.roll(width // 2, -1) * sine.double()
    rotate(states, HEADS, (cosine, sine))
    close = {"rtol": CLOSE[dtype], "atol": CLOSE[dtype]}
    torch.testing.assert_close(states[:, : HEADS + KV_HEADS].double(), expected, **close)
    assert torch.equal(states[:, HEADS + KV_HEADS :], values)


@pytest.mark.sample(full=7)
@pytest.mark.full
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 80, 128])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.usefixtures("any_rows")
def test_entries_go_to_the_cache_as_by_a_copy_after_the_rotation(dtype, width, normed):
    """To the bit in the interpreter; a compiler may contract the products of both kernels in another order."""
    close = {"rtol": CLOSE[dtype] * (DEVICE == "cuda"), "atol": CLOSE[dtype] * (DEVICE == "cuda")}
    states, tables = rotation_of(width, dtype)
    weights = HeadNorms(numbers(width, dtype=dtype, seed=2), numbers(width, dtype=dtype, seed=3), 1e-6)
    norms, slots = weights if normed else None, torch.tensor([6, 0, 3], device=DEVICE)
    found = torch.full((2, KV_HEADS, 8, width), 7.0, dtype=dtype, device=DEVICE)
    expected, apart = found.clone(), states.clone()
    rotate(apart, HEADS, tables, norms)
    entries = apart[:, HEADS:].view(3, 2, KV_HEADS, width)
    expected.index_copy_(2, slots, entries.permute(1, 2, 0, 3))
    rotate(states, HEADS, tables, norms, (found, slots))
    torch.testing.assert_close(found, expected, **close)
    torch.testing.assert_close(states[:, :HEADS], apart[:, :HEADS], **close)
    assert (found[:, :, 1] == 7).all()


@pytest.mark.full
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 80])
@pytest.mark.usefixtures("any_rows")
def test_norms_of_heads_before_the_rotation(dtype, width):
    """Queries and keys, each with its own weights; rounded in between, as by separate kernels."""
    states, tables = rotation_of(width, dtype)
    norms = HeadNorms(numbers(width, dtype=dtype, seed=2), numbers(width, dtype=dtype, seed=3), 1e-6)
    apart = states.clone()
    for weight, part in ((norms.queries, apart[:, :HEADS]), (norms.keys, apart[:, HEADS : HEADS + KV_HEADS])):
        part.copy_(torch.nn.functional.rms_norm(part.double(), (width,), weight.double(), norms.eps))
    rotate(apart, HEADS, tables)
    rotate(states, HEADS, tables, norms)
    torch.testing.assert_close(states.double(), apart.double(), rtol=2 * CLOSE[dtype], atol=2 * CLOSE[dtype])


@pytest.mark.full
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [96, 1100])
def test_activation(dtype, width):
    both = numbers(3, 2 * width, dtype=dtype)
    gate, up = both.double().split(width, 1)
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(silu_product(both).double(), expected, rtol=CLOSE[dtype], atol=CLOSE[dtype] / 8)


@pytest.mark.full
@pytest.mark.skipif(DEVICE == "cuda", reason="the model is on the CPU")
@pytest.mark.sample(full=1)
@pytest.mark.parametrize("family", full_but(["qwen2_5_vl"], ["qwen2_5_vl", "qwen3_vl"]))
def test_a_models_pass_by_these_kernels(family):
    """The same logits and entries, for rows of several sequences; nothing that a pass keeps is written to."""
    engine = Engine(case(family)[0])
    spans = [engine.prefill(prompt, 8).span for prompt in test_graphs.prompts(engine)[:2]]
    lengths = [span.length for span in spans]
    batch = [Rows(spans[0], [5, 6, 7], [-1, 0, 0], tapped=(0, 1)), Rows(spans[1], [8])]
    decoder, found = engine.model.decoder, []
    for kernels in (None, KERNELS):
        decoder._kernels = kernels
        found.append(engine.run(batch))
        for span, length in zip(spans, lengths, strict=True):
            span.rollback(length)
    decoder._kernels = None
    for plain, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours.logits, plain.logits, rtol=0, atol=1e-4)
        torch.testing.assert_close(ours.hidden, plain.hidden, rtol=0, atol=1e-4)
    torch.testing.assert_close(found[1][0].tapped, found[0][0].tapped, rtol=0, atol=1e-4)


@pytest.mark.full
@pytest.mark.skipif(DEVICE == "cuda", reason="the model is on the CPU")
@pytest.mark.parametrize("family", full_but(["qwen2_5_vl"], ["qwen2_5_vl", "qwen3_vl"]))
def test_a_replayed_pass_by_these_kernels(family, monkeypatch):
    """Entries go to the slab by the rotation's kernel; a tree, a window and a token of three clips."""
    engine = Engine(case(family)[0])
    monkeypatch.setattr(engine.model.decoder, "_kernels", KERNELS)
    monkeypatch.setattr(engine.model.decoder, "graphs", ReplayedPasses(engine.model.decoder, standin.attention))
    one, other, third = (engine.prefill(prompt, 8).span for prompt in test_graphs.prompts(engine))
    tokens = test_graphs.TOKENS
    test_graphs.check(engine, [Rows(one, tokens[:3], [-1, 0, 0]), Rows(other, tokens[:1]), Rows(third, tokens[:3])])


@pytest.mark.skipif(DEVICE == "cuda", reason="the kernel is interpreted")
def test_devices_without_triton(monkeypatch):
    """A trial decides: some builds of torch lack it, and some machines a compiler."""
    triton_problem.cache_clear()
    assert not runs_triton(torch.device("cpu")) and load_block_kernels(torch.device("meta")) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(block_kernels.torch, "zeros", lambda *_, **__: torch.ones(1, 32))
    assert runs_triton(torch.device("cuda", 3))
    monkeypatch.setattr("vidspec.engine.kernel_elementwise.silu_product", lambda _: 1 / 0)
    assert not runs_triton(torch.device("cuda", 4)) and load_block_kernels(torch.device("cuda", 4)) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert not runs_triton(torch.device("cuda", 5))
    triton_problem.cache_clear()
