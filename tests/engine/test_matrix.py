"""One matrix for several layers: equal to each layer, held once, packed or quantised where the rule says so."""

from functools import partial

import pytest
import torch
from torch import nn

from tests.engine.largest import LargestTensor
from vidspec.engine import layout_times, layouts
from vidspec.engine import quantised as quantised_module
from vidspec.engine.layout_times import LARGE
from vidspec.engine.layouts import MatrixLinear, build_matrix, choose_packing, describe_layouts, lay_out_all
from vidspec.engine.matrix import FEW, SplitMatrix, can_pack, can_split
from vidspec.engine.quantised import Int4Matrix, Int8Matrix, choose_kernel, quantise_weight, quantised_bytes

pytestmark = pytest.mark.usefixtures("no_gradients")

FULL, HALF = torch.float32, torch.bfloat16
needs_packing = pytest.mark.skipif(not can_pack(FULL), reason="this build of torch has no oneDNN to pack with")
SLOWER, FASTER = [2.0, 2.0, 2.0], [1.0, 1.0, 1.0]


@pytest.fixture
def fastest(monkeypatch):
    """Set the times of all weights' layouts: one row, few, many."""
    monkeypatch.delenv(layout_times.VARIABLE, raising=False)

    def set_times(**times):
        monkeypatch.setattr(layout_times, "layout_times", lambda shape, dtype: times)

    return set_times


def layers(inner, outs, bias, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return [nn.Linear(inner, out, bias=bias, dtype=dtype) for out in outs]


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
@pytest.mark.parametrize("first", ["plain", "split", "transposed"])
def test_a_second_copy_serves_passes_of_several_rows(fastest, bias, first):
    some = layers(64, (64, 32), bias)
    weights = [layer.weight.clone() for layer in some]
    times = {name: [1.5, 2.0, 2.0] for name in ("plain", "split", "transposed")}
    fastest(**(times | {first: [1.0, 2.0, 2.0]}), packed=[2.0, 1.0, 1.0])
    made = build_matrix(some, packing="copies")
    assert made.layout == {"split": "split1"}.get(first, first) + "+packed"
    assert made.nbytes == 96 * 64 * 4 and made.second
    assert made.weight.is_contiguous() is (first != "transposed")
    assert all(torch.equal(layer.weight, weight) for layer, weight in zip(some, weights, strict=True))
    for rows in (1, 2, 3, 5, 30):
        given, residual = torch.randn(rows, 64), torch.randn(rows, 96)
        expected = torch.cat([layer(given) for layer in some], dim=-1)
        torch.testing.assert_close(made(given), expected, rtol=0, atol=5e-6)
        torch.testing.assert_close(made.add(residual, given), residual + expected, rtol=0, atol=5e-6)
        torch.testing.assert_close(made.add_(residual.clone(), given), residual + expected, rtol=0, atol=5e-6)
    assert build_matrix(layers(64, (32,), bias), packing="once").nbytes in (0, 32 * 64 * 4)


@needs_packing
@pytest.mark.parametrize(("few", "layout"), [(1.0, "split+packed"), (3.0, "split1+packed")])
def test_a_packed_copy_serves_more_rows_than_the_split_weight(fastest, monkeypatch, few, layout):
    fastest(plain=[3.0, 3.0, 2.0], split=[1.0, few, 2.0], packed=[2.0, 2.0, 1.0])
    made = build_matrix(layers(64, (64, 32), True), packing="copies")
    products, batch = [], torch.baddbmm
    monkeypatch.setattr(torch, "baddbmm", lambda *rest: products.append(rest[2].shape[2]) or batch(*rest))
    for rows in (1, 2, FEW, FEW + 1):
        made(torch.randn(rows, 64))
    assert made.layout == layout and products == ([1, 2, FEW] if few == 1 else [1])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("step", [1, 3])
def test_few_rows_are_multiplied_by_parts(monkeypatch, bias, rows, step):
    (one,) = layers(64, (96,), bias)
    made = SplitMatrix(one.weight.data, None if one.bias is None else one.bias.data)
    given, residual = torch.randn(rows, 64 * step)[:, ::step], torch.randn(rows, 96)
    batched = []
    for name in ("bmm", "baddbmm"):
        product = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *rest, product=product: batched.append(rest) or product(*rest))
    torch.testing.assert_close(made(given), one(given), rtol=0, atol=5e-6)
    assert made(given).is_contiguous() and len(batched) == 2 * (0 < rows < 5)
    torch.testing.assert_close(made.add(residual, given), residual + one(given), rtol=0, atol=5e-6)
    torch.testing.assert_close(made.add_(residual.clone(), given), residual + one(given), rtol=0, atol=5e-6)
    assert len(batched) == 4 * (0 < rows < 5)


def test_parts_are_equal_and_neither_few_nor_small(monkeypatch):
    assert can_split(96, FULL) is torch.backends.mkl.is_available() and not can_split(96, HALF)
    counts = {1: (8, 4, 2, 1, 1), 24: (128, 4, 2, 1, 1)}
    for threads, expected in counts.items():
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        parts = [len(SplitMatrix(torch.ones(out, 2), None)._parts) for out in (4096, 160, 64, 62, 97)]
        assert tuple(parts) == expected


@needs_packing
def test_second_copies_are_made_where_memory_suffices(fastest, monkeypatch):
    fastest(plain=[1.0, 2.0, 2.0], packed=[2.0, 1.0, 1.0])
    shapes = [((5, 2), False)] * 5  # of 200 bytes
    for free, wanted, expected in (
        (400, "auto", "copies"),
        (399, "auto", "once"),
        (None, "auto", "copies"),
        (1, True, "copies"),
        (1000, False, "none"),
    ):
        monkeypatch.setattr(layouts.memory, "available_memory", lambda free=free: free)
        assert choose_packing(shapes, FULL, wanted) == expected
    monkeypatch.setattr(layouts.memory, "available_memory", lambda: 500)
    assert [choose_packing(shapes, FULL, "auto", besides=taken) for taken in (100, 101)] == ["copies", "once"]


@needs_packing
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_weight_can_be_the_only_copy(fastest, bias):
    fastest(plain=SLOWER, transposed=SLOWER, packed=FASTER)
    some = layers(64, (32, 16), bias)
    given, residual = torch.randn(5, 64), torch.randn(5, 48)
    expected = torch.cat([layer(given) for layer in some], dim=-1)
    weight = torch.cat([layer.weight for layer in some])
    made = build_matrix(some, packing="once")
    assert made.nbytes == 48 * 64 * 4 and not made.second and all(layer.weight.nbytes == 0 for layer in some)
    for rows in (0, 1, 2, 5):
        torch.testing.assert_close(made(given[:rows]), expected[:rows], rtol=0, atol=2e-6)
    torch.testing.assert_close(made.add(residual, given), residual + expected, rtol=0, atol=2e-6)
    assert torch.equal(made.dense(torch.float32, given.device), weight)


@needs_packing
def test_a_shared_weight_stays_beside_its_packed_copy(fastest):
    fastest(plain=SLOWER, transposed=SLOWER, packed=FASTER)
    (one,) = layers(64, (32,), False)
    made = build_matrix([one], packing="copies", shared=True)
    assert made.layout == "packed" and made.second and one.weight.shape == (32, 64)
    assert build_matrix([one], packing="once", shared=True).layout == "plain"


@needs_packing
def test_bfloat16_weights_are_packed_where_the_cpu_computes_in_it(fastest):
    fastest(plain=SLOWER, packed=FASTER)
    fast = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert can_pack(HALF) is fast and can_pack(torch.float16) is False
    assert build_matrix(layers(64, (32,), False, dtype=HALF), packing="once").layout == ("packed" if fast else "plain")


@needs_packing
def test_layers_of_stock_modules(fastest):
    """All that multiply: once each, with their names; not those whose weight another module uses."""
    fastest(plain=SLOWER, transposed=SLOWER, packed=FASTER)
    tower, (one, two, tied, left) = nn.Module(), layers(16, (8, 8, 8, 8), True)
    tower.first, tower.inner = one, nn.Sequential(two, nn.GELU(), one)
    tower.tied, tower.table, tower.left = tied, nn.Embedding(8, 16), left
    tower.table.weight = tied.weight
    given = torch.randn(2, 3, 16)
    expected = [layer(given) for layer in (one, two, tied, left)]
    lay_out_all(tower, True, [left])
    assert tower.first is tower.inner[2] and isinstance(tower.first, MatrixLinear) and tower.first.weight.dtype is FULL
    assert tower.tied is tied and tower.left is left and describe_layouts([tower.first.matrix]) == "packed 8x16"
    found = [layer(given) for layer in (tower.first, tower.inner[0], tower.tied, tower.left)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    fastest(plain=SLOWER, transposed=FASTER, packed=SLOWER)
    lay_out_all(tower, True)
    assert tower.left is left and left.weight.t().is_contiguous()  # which the layer itself multiplies with as fast
    torch.testing.assert_close(left(given), expected[3], rtol=0, atol=1e-6)


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
    """A product of eight bits, for each that some CPU takes."""
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
    made, given = MatrixLinear(quantise_weight(layer.weight, layer.bias, "int8")), torch.randn(2, 3, 64)
    assert made(given).shape == (2, 3, 32) and (made.in_features, made.out_features) == (64, 32)
    assert torch.equal(made(given)[1, 2], made(given[1:, 2])[0])


def test_the_layout_of_a_weight(monkeypatch, fastest):
    fastest(plain=SLOWER, transposed=SLOWER, packed=FASTER)
    large, small = (LARGE // 1024, 1024), (LARGE // 1024 - 1, 1024)
    for eight_bits in (True, False):
        monkeypatch.setattr(layouts, "has_fast_int8", lambda known=eight_bits: known)
        for dtype in (FULL, HALF):
            unquantised = "packed" if can_pack(dtype) else "plain"
            expected = "int8" if eight_bits else unquantised
            assert layouts.choose_layout(large, dtype, "cpu", "auto", packing="copies") == expected
        assert layouts.choose_layout(small, FULL, "cpu", "auto") == "transposed"
        assert layouts.choose_layout(large, HALF, "cuda", "auto") == "plain"
        assert layouts.choose_layout(large, torch.float16, "cpu", "auto") == "plain"
        assert layouts.choose_layout((1, 1), FULL, "cpu", "int4") == "int4"
        assert layouts.choose_layout((1, 1), HALF, "cuda", "int8") == "int8"
    assert layouts.choose_layout(large, HALF, "cuda", packing="copies") == "plain"


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
