"""Prompts by flash-attn's kernel, which stands here as a stub of its signature in plain torch, against the others."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from types import ModuleType

import pytest
import torch

from tests.engine.families import case
from tests.engine.test_attention import reference
from vidspec.engine import flash
from vidspec.engine.attention import AttentionWindow, attend
from vidspec.engine.forward import Engine

CALLS = []


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """Stand-in for flash-attn: (total_q, heads, d) over (total_k, kv_heads, d), masks aligned at the lower right."""
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32 and q.dtype == k.dtype == v.dtype
    assert cu_seqlens_q.tolist() == [0, len(q)] and cu_seqlens_k.tolist() == [0, len(k)]
    assert (max_seqlen_q, max_seqlen_k) == (len(q), len(k)) and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    CALLS.append((len(q), len(k), window_size))
    row, entry = torch.arange(len(q))[:, None] + len(k) - len(q), torch.arange(len(k))
    visible = entry <= row if causal else torch.ones(len(q), len(k), dtype=torch.bool)
    if window_size[0] >= 0:
        visible = visible & (entry >= row - window_size[0])
    keys, values = (one.transpose(0, 1)[None] for one in (k, v))
    return reference(q, keys, values, visible, softmax_scale).view(q.shape).to(q.dtype)


@pytest.fixture
def package(monkeypatch):
    """flash-attn as it is found where it is installed, on a device that it supports."""
    module = ModuleType("flash_attn")
    module.flash_attn_varlen_func = flash_attn_varlen_func
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setattr(flash, "version", lambda name: "2.8.3")
    monkeypatch.setattr(flash, "is_supported", lambda query: True)
    flash.load_flash_attention.cache_clear()
    CALLS.clear()
    yield module
    flash.load_flash_attention.cache_clear()


def qkv(rows, length, heads=6, kv_heads=2, width=16):
    rng = torch.Generator().manual_seed(0)
    query = torch.randn(rows, heads + 1, width, generator=rng)[:, :heads]
    key, value = (torch.randn(1, kv_heads, length + 9, width, generator=rng)[:, :, :length] for _ in range(2))
    return query, key, value


@pytest.mark.parametrize(("rows", "length"), [(90, 90), (90, 300), (65, 66)], ids=["whole", "chunk", "short"])
@pytest.mark.parametrize("size", [None, 40], ids=["all", "window"])
def test_prompts_and_chunks_equal_the_other_kernels(package, monkeypatch, rows, length, size):
    given = qkv(rows, length)
    places = torch.arange(length - rows, length)
    window = None if size is None else AttentionWindow(size, places, places)
    got = attend(*given, 0.25, window=window)
    assert [(rows, length, (-1, -1) if size is None else (39, 0))] == CALLS
    monkeypatch.setattr(flash, "is_supported", lambda query: False)
    torch.testing.assert_close(got, attend(*given, 0.25, window=window), rtol=0, atol=2e-6)
    assert len(CALLS) == 1


def test_what_it_does_not_fit(package):
    """Tokens, windows and trees, and visual tokens that see each other."""
    tree = torch.ones(70, 70, dtype=torch.bool).tril()
    attend(*qkv(1, 90), 0.25)
    attend(*qkv(6, 90), 0.25)
    attend(*qkv(70, 90), 0.25, sees=tree)
    places = torch.arange(90)
    attend(*qkv(90, 90), 0.25, window=AttentionWindow(40, places, places, torch.full((90,), -1)))
    assert not CALLS


def test_a_models_prompt(package, monkeypatch):
    model, prompt = case("qwen2_5_vl")
    got = Engine(model).prefill(prompt, 8).logits
    assert len(CALLS) == model.decoder.depth - 1  # the last block attends for one row
    monkeypatch.setattr(flash, "is_supported", lambda query: False)
    torch.testing.assert_close(got, Engine(model).prefill(prompt, 8).logits, rtol=0, atol=4e-5)


@pytest.mark.parametrize("found", ["2.7.4.post1", "none", "broken"])
def test_where_it_cannot_be_used_nothing_changes(package, monkeypatch, found):
    def version(name):
        if found == "none":
            raise PackageNotFoundError(name)
        return found if found.startswith("2") else "2.8.3"

    monkeypatch.setattr(flash, "version", version)
    if found == "broken":  # built for another torch
        del package.flash_attn_varlen_func
    assert flash.load_flash_attention() is None
    assert attend(*qkv(90, 90), 0.25).shape == (90, 96) and not CALLS


def test_it_needs_a_gpu_and_half_precision():
    assert not flash.is_supported(torch.zeros(90, 2, 64, dtype=torch.bfloat16))
