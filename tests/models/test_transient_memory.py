"""Memory that rounding and reading quantised weights take beside their result: blocks of rows, not whole weights."""

import json

import pytest
import torch

from tests.pruning.allocation import Allocations
from vidspec.engine import few_rows, quantised, stored_codes
from vidspec.engine.quantised import quantise_weight
from vidspec.engine.stored_codes import StoredCodes
from vidspec.models import quantised as reading

OUT, INNER, GROUP = 1088, 1024, 128
NUMBERS = OUT * INNER
#: Bytes a number that stay while a block is worked on, and the most in a block at once.
BLOCK, IN_BLOCK = 64 * 1024, 20


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for module in (quantised, stored_codes, reading):
        monkeypatch.setattr(module, "BLOCK", BLOCK)
    monkeypatch.setattr(few_rows, "_BLOCK", BLOCK)
    with torch.inference_mode():
        yield


def transient(work, kept):
    """Return the bytes a number that work takes at once, without those that its result keeps and those of a block."""
    work()  # what Python imports and keeps
    with Allocations() as found:
        made = work()
    assert made is not None
    return (found.peak - IN_BLOCK * BLOCK) / NUMBERS - kept


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("precision, kept", [("int8", 1), ("int4", 0.55)])
def test_rounding_for_a_gpu(monkeypatch, precision, kept):
    monkeypatch.setattr(quantised, "kernel_on", lambda *_: "triton")
    monkeypatch.setattr(few_rows, "load_product", lambda: None)
    weight = torch.randn(OUT, INNER, dtype=torch.bfloat16)
    assert transient(lambda: quantise_weight(weight, None, precision), kept) < 0.1


def test_rounding_to_four_bits_on_a_cpu():
    """All codes before they are packed, a byte each, and the packed ones twice."""
    weight = torch.randn(OUT, INNER, dtype=torch.bfloat16)
    assert transient(lambda: quantise_weight(weight, None, "int4"), 0.57) < 1.8


def words(codes):
    """Eight codes of four bits in a word, along the second axis."""
    parts = codes.unflatten(1, (-1, 8)).int()
    return sum(parts[..., place] << 4 * place for place in range(8)).int()


def gptq(order):
    codes, scales = torch.randint(0, 16, (OUT, INNER)), torch.rand(INNER // GROUP, OUT).half()
    zeros = torch.full((INNER // GROUP, OUT // 8), 0x77777777, dtype=torch.int32)
    return {"qweight": words(codes).t().contiguous(), "scales": scales, "qzeros": zeros, "g_idx": order}


def nf4():
    state = torch.tensor(list(json.dumps({"blocksize": 64, "shape": [OUT, INNER]}).encode()), dtype=torch.uint8)
    codes = torch.randint(0, 256, (NUMBERS // 2, 1), dtype=torch.uint8)
    parts = {"weight": codes, "absmax": torch.rand(NUMBERS // 64), "quant_map": torch.rand(16)}
    return {**parts, "quant_state.bitsandbytes__nf4": state}


GROUPS = torch.arange(INNER) // GROUP
NVFP4 = {
    "weight": torch.zeros(OUT, INNER // 2, dtype=torch.uint8),
    "scale": torch.rand(OUT, INNER // 16).to(torch.float8_e4m3fn),
    "weight_scale_2": torch.tensor(0.1),
}
FP8 = {"weight": torch.zeros(OUT, INNER).to(torch.float8_e4m3fn), "scale": torch.rand(OUT // 64, INNER // 64)}


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    "read, parts, kept, most",
    [
        (reading._read_gptq, gptq(GROUPS), 0.5, 2),
        (reading._read_gptq, gptq(GROUPS.flip(0)), 4, 2),
        (reading._read_scaled, FP8, 4, 0.1),
        (reading._read_scaled, NVFP4, 4, 0.8),
        (reading._read_bitsandbytes, nf4(), 4, 0.5),
    ],
    ids=["gptq", "gptq in another order", "fp8", "nvfp4", "nf4"],
)
def test_reading_a_checkpoint(read, parts, kept, most):
    settings = {"weight_block_size": [64, 64]}
    assert transient(lambda: read(parts, settings), kept) < most


@pytest.mark.parametrize("bits", [8, 4])
def test_dequantising_stored_codes(bits):
    low, high, dtype = (-128, 128, torch.int8) if bits == 8 else (0, 16, torch.uint8)
    codes, groups = torch.randint(low, high, (OUT, INNER), dtype=dtype), 1 if bits == 8 else INNER // GROUP
    stored = StoredCodes.of(codes, torch.rand(OUT, groups), torch.full((OUT, groups), 8.0 if bits == 4 else 0.0))
    assert transient(lambda: stored.dense, 4) < 0.1
