"""The Triton kernels against attention with one mask; by Triton's interpreter where there is no GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engine import test_graphs
from tests.engine.families import case
from tests.engine.test_attention import reference
from tests.engine.test_graphs import sliding as sliding
from tests.tiers import full_but
from vidspec.engine.attention import attend
from vidspec.engine.forward import Engine
from vidspec.engine.graphs.passes import ReplayedPasses
from vidspec.engine.rows import Rows

pytest.importorskip("triton", reason="Triton, which comes with torch for GPUs, is not installed")
from vidspec.engine.kernel import split_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: Each sequence's entries in front of its tree, the tree, and the number of its last nodes that are rows of the pass.
SINGLE, WINDOW = (70, [-1], 1), (130, [-1, 0, 1, 2, 3, 4], 6)
TREE, LATE = (33, [-1, -1, 0, 0, 1, 3], 6), (64, [-1, -1, 0, 0, 1, 3], 3)
FIRST, LONG = (0, [-1, 0], 2), (9, list(range(-1, 63)), 64)


def laid_out(sequences, kv_heads, width, dtype, seed=0):
    """A slab with gaps of NaN, the rows' places, and of each sequence its entries and what its rows see."""
    rng = torch.Generator().manual_seed(seed)
    lengths = [before + len(parents) for before, parents, _ in sequences]
    slab = torch.full((2, kv_heads, sum(lengths) + 7 * len(sequences), width), float("nan"))
    columns, parts, start, first = [], [], 3, 0
    for (before, parents, rows), length in zip(sequences, lengths, strict=True):
        slab[:, :, start : start + length] = torch.randn(2, kv_heads, length, width, generator=rng)
        sees = torch.eye(len(parents), dtype=torch.bool)
        for node, parent in enumerate(parents):
            if parent >= 0:
                sees[node] |= sees[parent]
        sees = sees[len(parents) - rows :]
        for row in sees:
            bits = sum(1 << int(at) for at in row.nonzero()[:, 0])
            columns.append([before, length, start, first, bits - (1 << 64) * (bits >> 63), before + 1])
        parts.append((slice(start, start + length), sees))
        start, first = start + length + 7, first + rows
    return slab.to(DEVICE, dtype), torch.tensor(columns).t().contiguous().to(DEVICE), parts


@pytest.mark.sample(full=3)
@pytest.mark.full
@pytest.mark.parametrize(
    "sequences",
    [[SINGLE], [WINDOW], [TREE], [LATE], [FIRST], [LONG]],
    ids=["single", "window", "tree", "late", "first", "long"],
)
def test_one_sequence(sequences):
    check(sequences, 3, 1, 16, torch.float32, 2e-6)


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.parametrize(
    "heads, kv_heads, width", full_but([(4, 4, 16)], [(4, 4, 16), (6, 2, 64), (7, 1, 128), (16, 2, 32)])
)
def test_rows_of_several_sequences(heads, kv_heads, width):
    check([TREE, SINGLE, SINGLE, FIRST, LATE, WINDOW], heads, kv_heads, width, torch.float32, 2e-6)


@pytest.mark.sample(full=6)
@pytest.mark.full
@pytest.mark.parametrize(
    "dtype, close",
    [
        (torch.float32, 2e-6),
        (torch.float16, 3e-3),
        pytest.param(torch.bfloat16, 2e-2, marks=pytest.mark.gpu),  # the interpreter takes its bits for integers
    ],
)
@pytest.mark.parametrize("width", [64, 128, 256])
def test_widths_in_every_precision(dtype, close, width):
    check([TREE, SINGLE], 2, 1, width, dtype, close)


def check(sequences, heads, kv_heads, width, dtype, close):
    close = max(close, 1e-5 if DEVICE == "cuda" else 0)  # its exponentials are approximations
    slab, places, parts = laid_out(sequences, kv_heads, width, dtype)
    rows, scaling = places.shape[1], width**-0.5
    # As the fused product gives queries: a part of each row.
    query = torch.randn(rows, heads + 2, width, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)[:, :heads]
    got = split_attention(query, slab[0], slab[1], places, scaling)
    assert got.shape == (rows, heads * width) and got.dtype is dtype
    start = 0
    for where, sees in parts:
        own = query[start : start + len(sees)]
        key, value = slab[0, None, :, where], slab[1, None, :, where]
        visible = torch.ones(len(sees), key.shape[2], dtype=torch.bool)
        visible[:, key.shape[2] - sees.shape[1] :] = sees
        expected = reference(own.cpu(), key.cpu(), value.cpu(), visible, scaling)
        mine = got[start : start + len(sees)]
        torch.testing.assert_close(mine.float().cpu(), expected, rtol=0, atol=close)
        if dtype is torch.float32 and len(sees) != key.shape[2]:
            engine = attend(own, key, value, scaling, sees=sees.to(DEVICE))
            torch.testing.assert_close(mine, engine, rtol=0, atol=close)
        start += len(sees)


@pytest.mark.full
@pytest.mark.parametrize("before", [70, 1021])
def test_a_row_alone_and_within_a_window_is_the_same_to_the_bit(before, monkeypatch):
    """Both in passes of 8 rows; keys are split by the entries of the sequence when its decoding began.

    The interpreter's products are numpy's, whose BLAS rounds rows of a matrix by their places in it: einsum does not.
    """
    monkeypatch.setattr(np, "matmul", lambda a, b, dtype=None: np.einsum("ij,jk->ik", a, b).astype(dtype or a.dtype))
    began, width, heads = before - 40, 64, 1
    slab = torch.randn(2, 1, before + 20, width, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    query = torch.randn(8, heads, width, generator=torch.Generator().manual_seed(4)).to(DEVICE)

    def run(first, count):
        """Rows of the window from ``first`` on, and idle ones."""
        columns = [[before + first, before + first + count, 3, 0, (2 << row) - 1, began] for row in range(count)]
        columns += [[0, 1, before + 19, row, 1, 0] for row in range(count, 8)]
        places = torch.tensor(columns).t().contiguous().to(DEVICE)
        own = torch.cat([query[first : first + count], torch.zeros_like(query[: 8 - count])])
        got = split_attention(own, slab[0], slab[1], places, width**-0.5)
        assert not got[count:].any()
        return got[:count]

    window = run(0, 6)
    for row in (0, 5):
        assert torch.equal(run(row, 1)[0], window[row])
    assert not torch.equal(window[0], window[1])


@pytest.mark.full
def test_scores_far_apart_do_not_overflow():
    slab, places, parts = laid_out([(300, [-1, 0], 2)], 1, 16, torch.float32)
    slab[0, :, 3:100] *= 400
    query = torch.randn(2, 2, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    visible = torch.ones(2, 302, dtype=torch.bool).tril(300)
    where = parts[0][0]
    expected = reference(query.cpu(), slab[0, None, :, where].cpu(), slab[1, None, :, where].cpu(), visible, 0.2)
    got = split_attention(query, slab[0], slab[1], places, 0.2).cpu()
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


@pytest.mark.full
@pytest.mark.skipif(DEVICE == "cuda", reason="tests/gpu has it on the GPU itself")
def test_a_models_pass_by_these_kernels(monkeypatch):
    engine = Engine(case("qwen2_5_vl")[0])
    monkeypatch.setattr(engine.model.decoder, "graphs", ReplayedPasses(engine.model.decoder))
    one, other, third = (engine.prefill(prompt, 8).span for prompt in test_graphs.prompts(engine))
    tokens, tree = test_graphs.TOKENS, [-1, 0, 0]
    test_graphs.check(engine, [Rows(one, tokens[:3], tree), Rows(other, tokens[:1]), Rows(third, tokens[:3])])


@pytest.mark.full
@pytest.mark.skipif(DEVICE == "cuda", reason="the model is on the CPU")
def test_sliding_windows_by_these_kernels(sliding):
    engine, (far, near, none) = sliding
    engine.model.decoder.graphs = ReplayedPasses(engine.model.decoder)
    test_graphs.check(engine, [Rows(far, [1, 2, 3], [-1, 0, 0]), Rows(near, [4, 5, 6, 7]), Rows(none, [8])])
