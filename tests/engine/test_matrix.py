"""One matrix for several layers: equal to each layer, held once, packed or quantised where the rule says so."""

from functools import partial

import pytest
import torch
from torch import nn

from tests.engine.largest import LargestTensor
from vidspec.engine import layouts, matrix
from vidspec.engine import quantised as quantised_module
from vidspec.engine.layouts import QuantisedLinear, build_matrix
from vidspec.engine.matrix import LARGE, PackedMatrix, choose_packing
from vidspec.engine.quantised import Int4Matrix, Int8Matrix, choose_kernel, quantise_weight, quantised_bytes

needs_packing = pytest.mark.skipif(not choose_packing(0, True), reason="this build of torch has no oneDNN to pack with")


def layers(inner, outs, bias, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return [nn.Linear(inner, out, bias=bias, dtype=dtype) for out in outs]


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outs", [(24,), (24, 8, 8)])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_outputs_are_the_layers_side_by_side(outs, bias, rows):
    some = layers(16, outs, bias)
    given, residual = torch.randn(rows, 16), torch.randn(rows, sum(outs))
    expected = torch.cat([layer(given) for layer in some], dim=-1)
    made = build_matrix(some)
    torch.testing.assert_close(made(given), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(made.add(residual, given), residual + expected, rtol=0, atol=1e-6)
    assert made.nbytes == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_held_once(dtype):
    some = layers(16, (24, 8), True, dtype=dtype)
    before = [(layer.weight.clone(), layer.bias.clone()) for layer in some]
    made = build_matrix(some)
    storage = made.weight.untyped_storage().data_ptr()
    for layer, (weight, bias) in zip(some, before, strict=True):
        assert torch.equal(layer.weight, weight) and torch.equal(layer.bias, bias)
        assert layer.weight.untyped_storage().data_ptr() == storage
    given = torch.randn(3, 16, dtype=dtype)
    torch.testing.assert_close(torch.cat([layer(given) for layer in some], -1), made(given))


def test_a_weight_that_is_shared_stays_as_it_is():
    (one,) = layers(16, (24,), False)
    weight = one.weight
    pointer = weight.data_ptr()
    made = build_matrix([one], shared=True)
    assert made.weight.data_ptr() == one.weight.data_ptr() == pointer and made.weight.is_contiguous()
    assert build_matrix(layers(16, (24,), False)).weight.t().is_contiguous()


@needs_packing
@pytest.mark.parametrize("bias", [True, False])
def test_large_weights_are_packed(bias):
    some = layers(1024, (512, 512), bias)
    for rows in (1, 2, 3, 5, 30):
        given, residual = torch.randn(rows, 1024), torch.randn(rows, 1024)
        expected = torch.cat([layer(given) for layer in some], dim=-1)
        made = build_matrix(some, packed=True)
        assert made.nbytes == LARGE * 4 and made.second
        torch.testing.assert_close(made(given), expected, rtol=0, atol=2e-5)
        torch.testing.assert_close(made.add(residual, given), residual + expected, rtol=0, atol=2e-5)
    assert build_matrix(layers(1024, (512, 511), bias), packed=True).nbytes == 0  # not large


@needs_packing
def test_the_rule(monkeypatch):
    monkeypatch.setattr(matrix.platform, "machine", lambda: "x86_64")
    for free, wanted, expected in (
        (100, "auto", True),
        (99, "auto", False),
        (None, "auto", True),
        (1, True, True),
        (1000, False, False),
    ):
        monkeypatch.setattr(matrix.memory, "available_memory", lambda free=free: free)
        assert choose_packing(50, wanted) is expected
    monkeypatch.setattr(matrix.platform, "machine", lambda: "aarch64")
    assert choose_packing(0, "auto") is False and choose_packing(0, True) is True


@needs_packing
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_weight_can_be_the_only_copy(bias):
    some = layers(64, (32, 16), bias)
    given, residual = torch.randn(5, 64), torch.randn(5, 48)
    expected = torch.cat([layer(given) for layer in some], dim=-1)
    weight = torch.cat([layer.weight for layer in some])
    made = PackedMatrix(some)
    assert made.nbytes == 48 * 64 * 4 and all(layer.weight.nbytes == 0 for layer in some)
    for rows in (1, 2, 5):
        torch.testing.assert_close(made(given[:rows]), expected[:rows], rtol=0, atol=2e-6)
    torch.testing.assert_close(made.add(residual, given), residual + expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(made.dense(torch.float32, given.device), weight, rtol=0, atol=1e-6)


@needs_packing
def test_large_bfloat16_weights_are_packed_where_the_cpu_computes_in_it(monkeypatch):
    monkeypatch.setattr(layouts, "PackedMatrix", lambda layers: "packed")
    large = layers(1024, (1024,), False, dtype=torch.bfloat16)
    assert build_matrix(large, packed=True) == "packed"
    assert build_matrix(large, packed=True, shared=True).nbytes == 0
    assert build_matrix(layers(1024, (512,), False, dtype=torch.bfloat16), packed=True).nbytes == 0
    assert choose_packing(0, True, torch.bfloat16) is torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert choose_packing(0, True, torch.float16) is False


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("precision", "closeness"), [("int8", 0.025), ("int4", 0.15)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_rows_result_does_not_depend_on_the_rows_beside_it(precision, closeness, bias, dtype, cpu_kernel):
    (layer,) = layers(192, (112,), bias, dtype=dtype)
    made = quantise_weight(layer.weight, layer.bias, precision)
    given, residual = torch.randn(6, 192, dtype=dtype), torch.randn(6, 112, dtype=dtype)
    given[1] *= 1000  # a neighbour whose scale is another
    together, added = made(given), made.add(residual, given)
    close = partial(torch.allclose, rtol=1e-4, atol=1e-4)  # as products of floats are
    same = close if made.kernel == "dense" else torch.equal
    for row in range(6):
        assert same(made(given[row : row + 1])[0], together[row])
        assert same(made.add(residual[row : row + 1], given[row : row + 1])[0], added[row])
    expected = layer(given)
    assert together.dtype == dtype
    assert ((together - expected).norm(dim=1) < closeness * expected.norm(dim=1)).all()
    assert ((added - expected - residual).norm(dim=1) < closeness * expected.norm(dim=1) + 0.1).all()
    assert made.nbytes < (0.3 if precision == "int8" else 0.17) * 4 * 192 * 112


@pytest.fixture(params=["fbgemm", "onednn", "dense"])
def cpu_kernel(request, monkeypatch):
    """Each product of eight bits that some CPU takes."""
    if request.param == "fbgemm" and "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this build of torch has no FBGEMM")
    if request.param == "onednn" and not hasattr(torch.ops.onednn, "qlinear_prepack"):
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(quantised_module, "_cpu_kernel", lambda: request.param)
    if request.param == "fbgemm":  # which is taken where sums of eight bits are not exact
        monkeypatch.setattr(quantised_module, "_zero_point", lambda: 64)
    return request.param


def test_codes_of_a_checkpoint_are_the_weight(cpu_kernel):
    torch.manual_seed(0)
    given = torch.randn(3, 64)
    given[1, 5] = 3000  # beside which a digit of eight bits leaves nothing of the others
    codes, scales = torch.randint(-128, 128, (32, 64), dtype=torch.int8), torch.rand(32) / 64
    made, weight = Int8Matrix.from_codes(codes, scales), codes * scales[:, None]
    assert made.kernel == ("int8" if cpu_kernel == "dense" else cpu_kernel)
    error = (made(given) - given @ weight.t()).norm(dim=1)
    assert (error < 1e-6 * given.norm(dim=1) * weight.norm()).all()
    assert (made.dense(torch.float32, given.device) - weight).abs().max() < 2e-6
    codes = torch.randint(0, 16, (32, 64), dtype=torch.uint8)
    scales, zeros = torch.rand(32, 2) / 16, torch.randint(0, 16, (32, 2)).float()
    weight = ((codes.view(32, 2, 32) - zeros[..., None]) * scales[..., None]).view(32, 64)
    rounded, whole = (
        Int4Matrix(codes[:out], scales[:out], zeros[:out], 32) for out in (32, 8)
    )  # 8: too narrow for torch's
    assert (rounded.kernel, whole.kernel) == ("int4", "dense")
    expected = given @ weight.t()
    assert ((rounded(given) - expected).norm(dim=1) < 2**-8 * given.norm(dim=1) * weight.norm()).all()
    torch.testing.assert_close(rounded.dense(torch.float32, given.device), weight, rtol=2**-6, atol=2**-8)
    torch.testing.assert_close(whole(given), expected[:, :8])
    torch.testing.assert_close(whole.dense(torch.float32, given.device), weight[:8])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_a_checkpoints_codes_is_the_same_among_others(dtype, cpu_kernel):
    torch.manual_seed(0)
    given = torch.randn(33, 192, dtype=dtype)
    eight = Int8Matrix.from_codes(torch.randint(-128, 128, (112, 192), dtype=torch.int8), torch.rand(112) / 64)
    codes, scales = torch.randint(0, 16, (112, 192), dtype=torch.uint8), torch.rand(112, 3) / 16
    for made in (eight, Int4Matrix(codes, scales, torch.full((112, 3), 7), 64)):
        together = made(given)
        assert together.dtype is dtype
        for count in (1, 2, 5, 16):
            for start in (0, 3, 16):
                assert torch.equal(made(given[start : start + count]), together[start : start + count])


def test_numbers_as_large_as_codes_go_are_summed_exactly(cpu_kernel):
    """A CPU without VNNI saturates when it adds two products of eight bits."""
    assert cpu_kernel
    made = Int8Matrix.from_codes(torch.full((16, 512), 127, dtype=torch.int8), torch.ones(16))
    torch.testing.assert_close(made(torch.ones(4, 512)), torch.full((4, 16), 127.0 * 512), rtol=1e-6, atol=0)


def test_the_kernel_that_computes_a_product():
    shape = (256, 128)
    assert choose_kernel(8, shape, "cuda", (9, 0)) == choose_kernel(8, (100, 128), "cuda", (8, 0)) == "triton"
    assert choose_kernel(8, (128, 100), "cuda", (9, 0)) == choose_kernel(8, shape, "cuda", (7, 5)) == "dense"
    assert choose_kernel(8, shape, "mps") == choose_kernel(4, shape, "mps", group=64) == "dense"
    for group, kernel in ((32, "triton"), (64, "triton"), (128, "triton"), (48, "dense"), (256, "dense"), (0, "dense")):
        assert choose_kernel(4, shape, "cuda", (8, 0), group) == kernel
    assert choose_kernel(4, shape, "cuda", (7, 5), 64) == "dense" and choose_kernel(4, shape, "cpu", group=32) == "int4"
    assert choose_kernel(4, (8, 128), "cpu", group=64) == choose_kernel(4, shape, "cpu", group=16) == "dense"


def test_in_place_of_a_layer():
    (layer,) = layers(64, (32,), True)
    made, given = QuantisedLinear(quantise_weight(layer.weight, layer.bias, "int8")), torch.randn(2, 3, 64)
    assert made(given).shape == (2, 3, 32) and (made.in_features, made.out_features) == (64, 32)
    assert torch.equal(made(given)[1, 2], made(given[1:, 2])[0])


def test_the_layout_of_a_weight(monkeypatch):
    full, half, large = torch.float32, torch.bfloat16, LARGE
    for eight_bits in (True, False):
        monkeypatch.setattr(layouts, "has_fast_int8", lambda known=eight_bits: known)
        assert layouts.choose_layout(large, full, "cpu", "auto", packed=True) == (
            "int8" if eight_bits else "packed copy"
        )
        assert layouts.choose_layout(large, half, "cpu", "auto", packed=True) == ("int8" if eight_bits else "packed")
        assert (
            layouts.choose_layout(large - 1, full, "cpu", "auto")
            == layouts.choose_layout(large, half, "cuda", "auto")
            == "plain"
        )
        assert layouts.choose_layout(large, torch.float16, "cpu", "auto") == "plain"
        assert (
            layouts.choose_layout(1, full, "cpu", "int4") == "int4"
            and layouts.choose_layout(1, half, "cuda", "int8") == "int8"
        )
    assert layouts.choose_layout(large, half, "cpu", packed=True, shared=True) == "plain"


@pytest.mark.parametrize("wanted", ["int8", "int4"])
def test_layers_of_codes_let_go_of_their_weights_unless_shared(wanted):
    for shared in (False, True):
        some = layers(64, (32, 16), True)
        given = torch.randn(3, 64)
        expected = torch.cat([layer(given) for layer in some], dim=-1)
        made = build_matrix(some, wanted, shared=shared)
        assert (made(given) - expected).norm() < 0.15 * expected.norm()
        assert all((layer.weight.numel() > 0) is shared for layer in some)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_codes_are_made_in_blocks_of_rows(monkeypatch, precision):
    """Nothing of more than a byte a weight is made of all rows at once, and blocks change no number."""
    weight, rows = torch.randn(1088, 512), torch.randn(3, 512)
    whole = quantise_weight(weight, None, precision)
    monkeypatch.setattr(quantised_module, "BLOCK", 64 * 512)
    with LargestTensor() as largest:
        parts = quantise_weight(weight, None, precision)
    assert torch.equal(parts(rows), whole(rows)) and parts.nbytes == whole.nbytes
    assert largest.nbytes <= weight.numel()


@pytest.mark.parametrize("device", ["cpu"])
@pytest.mark.parametrize("shape", [(96, 64), (100, 64), (48, 33)])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_bytes_are_foreseen(precision, shape, device):
    made = quantise_weight(torch.randn(shape), None, precision)
    assert made.nbytes == quantised_bytes(shape, precision, torch.device(device))
