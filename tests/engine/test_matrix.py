"""One matrix for several layers: equal to each layer, held once, packed where the rule says so."""

import pytest
import torch
from torch import nn

from vidspec.engine import matrix
from vidspec.engine.matrix import LARGE, Matrix, packing

needs_packing = pytest.mark.skipif(not packing(0, True), reason="this build of torch has no oneDNN to pack with")


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
    made = Matrix(some)
    torch.testing.assert_close(made(given), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(made.add(residual, given), residual + expected, rtol=0, atol=1e-6)
    assert made.packed_bytes == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_held_once(dtype):
    some = layers(16, (24, 8), True, dtype=dtype)
    before = [(layer.weight.clone(), layer.bias.clone()) for layer in some]
    made = Matrix(some)
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
    made = Matrix([one], shared=True)
    assert made.weight.data_ptr() == one.weight.data_ptr() == pointer and made.weight.is_contiguous()
    assert Matrix(layers(16, (24,), False)).weight.t().is_contiguous()


@needs_packing
@pytest.mark.parametrize("bias", [True, False])
def test_large_weights_are_packed(bias):
    some = layers(1024, (512, 512), bias)
    for rows in (1, 2, 3, 5, 30):
        given, residual = torch.randn(rows, 1024), torch.randn(rows, 1024)
        expected = torch.cat([layer(given) for layer in some], dim=-1)
        made = Matrix(some, packed=True)
        assert made.packed_bytes == LARGE * 4
        torch.testing.assert_close(made(given), expected, rtol=0, atol=2e-5)
        torch.testing.assert_close(made.add(residual, given), residual + expected, rtol=0, atol=2e-5)
    assert Matrix(layers(1024, (512, 511), bias), packed=True).packed_bytes == 0  # not large
    assert Matrix(layers(1024, (512, 512), bias, dtype=torch.bfloat16), packed=True).packed_bytes == 0


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
        monkeypatch.setattr(matrix.memory, "available", lambda free=free: free)
        assert packing(50, wanted) is expected
    monkeypatch.setattr(matrix.platform, "machine", lambda: "aarch64")
    assert packing(0, "auto") is False and packing(0, True) is True
