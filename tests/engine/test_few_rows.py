"""Quantised weights of a GPU: the kernels of few rows by Triton's interpreter, and dequantised blocks for prompts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from research.random_decoder import engine_of, language
from research.sizes import Size
from tests.tiers import in_turn
from vidspec.engine import few_rows, quantised, stored_codes
from vidspec.engine.few_rows import FEW_ROWS, KernelMatrix, pack_levels, pack_words, unpack_levels, unpack_words
from vidspec.engine.quantised import quantise_weight
from vidspec.engine.rows import Rows
from vidspec.engine.stored_codes import StoredCodes

pytest.importorskip("triton", reason="Triton, which comes with torch for GPUs, is not installed")
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from vidspec.engine import kernel_quantised
from vidspec.engine.kernel_quantised import few_row_product, split_count

pytestmark = pytest.mark.usefixtures("no_gradients")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = (torch.float16, torch.bfloat16)
CLOSE = {torch.float16: 2**-10, torch.bfloat16: 2**-7}


def to_float(handle):
    if handle.dtype.scalar.name != "bf16":
        return handle.data
    return (handle.data.astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(numbers):
    bits = numbers.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@pytest.fixture(autouse=True)
def interpreted_arithmetic(monkeypatch):
    """The interpreter takes bits of bfloat16 for integers, and BLAS rounds rows by their places: einsum does not."""
    plain = InterpreterBuilder.binary_op

    def binary_op(self, lhs, rhs, op):
        if lhs.dtype.scalar.name != "bf16":
            return plain(self, lhs, rhs, op)
        return TensorHandle(to_bfloat16(op(to_float(lhs), to_float(rhs))), lhs.dtype.scalar)

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        left, right = (to_float(one).astype(np.float32) for one in (a, b))
        return TensorHandle(np.einsum("ij,jk->ik", left, right) + d.data, d.dtype.scalar)

    def get_bf16(self, value):
        return TensorHandle(to_bfloat16(np.array([value])), tl.bfloat16)

    monkeypatch.setattr(InterpreterBuilder, "get_bf16", get_bf16, raising=False)
    monkeypatch.setattr(InterpreterBuilder, "binary_op", binary_op)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def random_weight(bits, shape, group, dtype, seed=0):
    """Return words, scales or levels, and the weight in float64."""
    rng, (out, inner) = torch.Generator().manual_seed(seed), shape
    if bits == 8:
        codes = torch.randint(-128, 128, shape, dtype=torch.int8, generator=rng)
        scales = torch.rand(out, generator=rng) / 64
        return pack_words(codes, 8), scales, codes.double() * scales.double()[:, None]
    codes = torch.randint(0, 16, shape, dtype=torch.uint8, generator=rng)
    scales = (torch.rand(inner // group, out, generator=rng) / 16).to(dtype)
    zeros = torch.randint(0, 17, (inner // group, out), dtype=torch.int8, generator=rng)
    over = [one.t().double().repeat_interleave(group, 1) for one in (scales, zeros)]
    return pack_words(codes, 4), pack_levels(scales, zeros), (codes.double() - over[1]) * over[0]


def on_device(*tensors):
    return [None if one is None else one.to(DEVICE) for one in tensors]


SHAPES = [(8, 128, 1), (4, 32, 1), (4, 64, 1), (4, 128, 3), (4, 256, 2)]


@pytest.mark.sample(full=4)
@pytest.mark.full
@pytest.mark.parametrize("bits, group, rows", in_turn(SHAPES, 2))
@pytest.mark.parametrize("dtype", HALF)
def test_products_are_those_of_float64(bits, group, rows, dtype):
    """With outputs that fill no tile, inputs that are split, more than one block of rows, bias and residual."""
    shape = (70, 1024)
    assert split_count(*shape, 132) == 2
    *packed, weight = random_weight(bits, shape, group, dtype)
    for count in (rows, 16 * rows + 1):
        given = torch.randn(count, shape[1] + 8, generator=torch.Generator().manual_seed(1)).to(dtype)[:, :-8]
        bias, residual = (
            torch.randn(size, generator=torch.Generator().manual_seed(2)).to(dtype) for size in (70, (count, 70))
        )
        for added in ((None, None), (bias, residual)):
            got = few_row_product(*on_device(given, *packed, *added)).cpu()
            expected = given.double() @ weight.t() + sum(one.double() for one in added if one is not None)
            assert got.dtype is dtype and got.shape == (count, 70)
            torch.testing.assert_close(got.double(), expected, rtol=CLOSE[dtype], atol=2e-4)


@pytest.mark.full
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", HALF)
def test_a_rows_product_does_not_depend_on_the_number_of_rows(bits, dtype):
    """Alone, among 16, in a block of 32 and in the second one of 64: the same to the bit."""
    *packed, _ = random_weight(bits, (64, 1024), 64, dtype)
    given = torch.randn(64, 1024, generator=torch.Generator().manual_seed(3)).to(dtype)
    whole = few_row_product(*on_device(given, *packed, None, None))
    for first, count in ((0, 1), (40, 1), (3, 16), (30, 20), (0, 33)):
        part = few_row_product(*on_device(given[first : first + count], *packed, None, None))
        assert torch.equal(part, whole[first : first + count])


@pytest.mark.parametrize("bits", [8, 4])
def test_numbers_of_one_sign_keep_their_precision(bits):
    """Codes are multiplied with a constant added, which for such rows is most of the sums until it leaves."""
    *packed, weight = random_weight(bits, (64, 512), 64, torch.float16)
    given = 4 + torch.rand(2, 512, generator=torch.Generator().manual_seed(4)).half()
    got, expected = few_row_product(*on_device(given, *packed, None, None)).cpu(), given.double() @ weight.t()
    assert (got.double() - expected).norm() < 2**-11 * expected.norm()


@pytest.mark.full
def test_programs_leave_their_counters_at_zero():
    *packed, _ = random_weight(8, (64, 1024), 0, torch.float16)
    for _ in range(2):
        few_row_product(*on_device(torch.randn(1, 1024).half(), *packed, None, None))
    assert not any(counters.any() for counters in kernel_quantised._ARRIVED.values())


@pytest.mark.parametrize(
    "shape, splits",
    [((64, 128), 1), ((3584, 3584), 7), ((3584, 18944), 8), ((37888, 3584), 1), ((4608, 3584), 7), ((152064, 3584), 1)],
)
def test_inputs_are_split_where_outputs_do_not_fill_a_device(shape, splits):
    assert split_count(*shape, 132) == splits


@pytest.mark.parametrize("bits", [8, 4])
def test_codes_are_packed_in_words_and_back(bits):
    low, high = (-128, 128) if bits == 8 else (0, 16)
    codes = torch.randint(low, high, (3, 256), dtype=torch.int8 if bits == 8 else torch.uint8)
    words = pack_words(codes, bits)
    assert words.shape == (3, 256 * bits // 32) and words.dtype is torch.int32
    assert torch.equal(unpack_words(words, bits), codes)


def test_a_level_holds_a_scale_and_a_zero():
    """A scale of 16 bits exactly, any other to 19; negative ones too."""
    scales = torch.cat([torch.randn(500).half().float(), torch.randn(500).bfloat16().float(), torch.randn(500) * 1e-3])
    zeros = torch.arange(1500) % 17
    kept, codes = unpack_levels(pack_levels(scales, zeros))
    assert torch.equal(codes, zeros.int()) and torch.equal(kept[:1000], scales[:1000])
    torch.testing.assert_close(kept, scales, rtol=2**-19, atol=0)


class Operations(TorchDispatchMode):
    """Names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def calls(monkeypatch):
    """Rows of each call of the kernel, whose place a product in float64 takes."""
    counts = []

    def product(rows, words, scales, bias, residual):
        counts.append(len(rows))
        made = KernelMatrix(words, scales)
        out = rows.double() @ made.dense(torch.float64, rows.device).t()
        for added in (bias, residual):
            out = out if added is None else out + added.double()
        return out.to(rows.dtype)

    monkeypatch.setattr(few_rows, "load_product", lambda: product)
    for module in (quantised, stored_codes):
        monkeypatch.setattr(module, "kernel_on", lambda *_: "triton")
    return counts


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_prompts_are_products_of_dequantised_blocks(monkeypatch, calls, bits, bias):
    monkeypatch.setattr(few_rows, "_BLOCK", 64 * 256)
    words, scales, weight = random_weight(bits, (200, 256), 64, torch.bfloat16)
    added = torch.randn(200, dtype=torch.bfloat16) if bias else None
    made, wide = KernelMatrix(words, scales, added), torch.randn(FEW_ROWS + 1, 256, dtype=torch.bfloat16)
    residual = torch.randn(FEW_ROWS + 1, 200, dtype=torch.bfloat16)
    with Operations() as ran:
        got = made(wide)
    assert calls == [] and ran.names.count("mm") == 4  # 200 outputs in blocks of 64
    expected = wide.double() @ weight.t() + (0 if added is None else added.double())
    torch.testing.assert_close(got.double(), expected, rtol=2**-6, atol=0.1)
    torch.testing.assert_close(made.add(residual, wide).double(), expected + residual.double(), rtol=2**-6, atol=0.1)
    with Operations() as ran:
        few = made.add(residual[:-1], wide[:-1])
    assert calls == [FEW_ROWS] and "mm" not in ran.names
    torch.testing.assert_close(few.double(), expected[:-1] + residual[:-1].double(), rtol=2**-6, atol=0.1)
    torch.testing.assert_close(made.dense(torch.float32, wide.device).double(), weight, rtol=2**-22, atol=0)


def test_float32_rows_take_dequantised_weights(calls):
    words, scales, weight = random_weight(4, (64, 128), 32, torch.float16)
    rows = torch.randn(2, 128)
    got = KernelMatrix(words, scales)(rows)
    torch.testing.assert_close(got.double(), rows.double() @ weight.t(), rtol=1e-4, atol=1e-4)
    assert calls == []


@pytest.mark.parametrize(("precision", "closeness"), [("int8", 0.012), ("int4", 0.13)])
def test_weights_are_rounded_for_the_kernels(calls, precision, closeness):
    weight, rows = torch.randn(96, 256, dtype=torch.bfloat16), torch.randn(4, 256, dtype=torch.bfloat16)
    weight[:, :64] += 4  # a group without zero among its numbers
    made = quantise_weight(weight, None, precision)
    assert isinstance(made, KernelMatrix) and made.precision == precision
    expected = rows.double() @ weight.double().t()
    assert (made(rows).double() - expected).norm() < closeness * expected.norm() and calls == [4]
    assert made.nbytes == quantised.quantised_bytes((96, 256), precision, torch.device("cpu"))


@pytest.mark.parametrize("scales", [torch.float16, torch.float32])
@pytest.mark.parametrize("bits", [8, 4])
def test_codes_of_a_checkpoint_stay(calls, bits, scales):
    parts, weights = [], []
    for seed in (0, 1):
        words, scale, weight = random_weight(bits, (64, 256), 64, torch.float16, seed)
        if bits == 8:
            of = scale[:, None], torch.zeros(64, 1)
        else:
            scale, zeros = unpack_levels(scale.t())
            of = scale.to(scales), zeros.float()
        parts.append(StoredCodes.of(unpack_words(words, bits), *of))
        weights.append(weight)
    made = StoredCodes.join(parts, None, torch.device("cpu"))
    assert isinstance(made, KernelMatrix)
    dense = made.dense(torch.float32, torch.device("cpu")).double()
    torch.testing.assert_close(dense, torch.cat(weights), rtol=2**-22, atol=0)
    assert made.nbytes == 128 * ((256 + 4) if bits == 8 else 128 + 4 * 4)


@pytest.mark.full
@pytest.mark.skipif(DEVICE == "cuda", reason="tests/gpu has it on the GPU itself")
@pytest.mark.parametrize(("weights", "closeness"), [("int8", 0.02), ("int4", 0.3)])
def test_a_models_pass_by_these_kernels(monkeypatch, weights, closeness):
    """A window of one sequence and a token of another, by a target's own copy, which drafts on the target's slab."""
    size, cpu = Size(layers=2, hidden=128, heads=2, kv_heads=1, inner=256, vocabulary=300), torch.device("cpu")
    torch.manual_seed(1)
    engine = engine_of(language(size, cpu, torch.float16))
    spans = [engine.open(8) for _ in range(2)]
    batch = [Rows(spans[0], [1, 2, 3]), Rows(spans[1], [4])]
    expected = [one.logits.float() for one in engine.run(batch)]
    monkeypatch.setattr(quantised, "kernel_on", lambda *_: "triton")
    copied = engine.model.decoder.quantised_copy(weights)
    assert all(isinstance(matrix, KernelMatrix) for block in copied.blocks for matrix in block.matrices)
    for span in spans:
        span.rollback(0)
    drafting = engine_of(replace(engine.model, decoder=copied))
    for got, wanted in zip(drafting.run(batch), expected, strict=True):
        assert (got.logits.float() - wanted).norm() < closeness * wanted.norm()
