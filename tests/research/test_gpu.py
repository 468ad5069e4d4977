"""The measurement for GPUs: what it says without one, and its tables on the CPU with tiny sizes."""

from __future__ import annotations

import json

import pytest
import torch

from research import gpu
from research.gpu import Pair
from research.sizes import SIZES, Size
from research.ties import EPSILON, gap
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped

pytestmark = pytest.mark.full

SMALL = Size(layers=2, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=300)


def test_without_a_gpu(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == "no NVIDIA GPU here: nothing was run\n" and not (tmp_path / "out").exists()


def test_tables(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(SIZES, "tiny", SMALL)
    monkeypatch.setattr(gpu, "ENTRIES", (20, 40))
    monkeypatch.setattr(gpu, "pairs", lambda device: iter([Pair("embedded", "float32", "ar", 4, 0, 4, 99.0)]))
    monkeypatch.setattr(gpu, "copy_bandwidth", lambda device: 1e9)
    assert gpu.main(["--device", "cpu", "--sizes", "tiny", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert [(row["entries"], row["way"]) for row in found["sizes"]] == [
        (20, "stock, sdpa"),
        (40, "stock, sdpa"),
        (20, "fused, sdpa"),
        (40, "fused, sdpa"),
    ]
    assert all(row["share"] > 0 and row["chain"] > 0 and row["one"] < 1 for row in found["sizes"])
    text = (tmp_path / "gpu.md").read_text()
    assert (
        text in capsys.readouterr().out and "| tiny | 40 | fused, sdpa |" in text and "| 4/4 | 0 | yes | 99 |" in text
    )


def test_a_size_that_does_not_fit(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 * 10**9, 80 * 10**9))
    cuda = torch.device("cuda:0")
    assert gpu.fits(SIZES["32B"], cuda, (25_000,)) and not gpu.fits(SIZES["72B"], cuda, (25_000,))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (24 * 10**9, 24 * 10**9))
    assert gpu.fits(SIZES["7B"], cuda, (25_000,)) and not gpu.fits(SIZES["32B"], cuda, (25_000,))


def test_pairs_that_are_not_lossless_fail(monkeypatch, tmp_path):
    assert not Pair("embedded", "float32", "std", 3, 1, 4, 9.0).holds
    assert Pair("embedded", "bfloat16", "std", 3, 1, 4, 9.0).holds
    monkeypatch.setattr(gpu, "copy_bandwidth", lambda device: 1e9)
    monkeypatch.setattr(gpu, "timed", lambda *rest, **named: iter(()))
    monkeypatch.setattr(gpu, "pairs", lambda device: iter([Pair("embedded", "bfloat16", "std", 2, 1, 4, 9.0)]))
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path)]) == 1


def test_profiles_of_the_built_in_pairs(monkeypatch):
    monkeypatch.setattr(gpu, "_PROFILES", ("ar", "vanilla-sd"))
    found = list(gpu.pairs("cpu", ("float32",), clips=1))
    assert [(one.pair, one.profile) for one in found] == [
        (pair, name) for pair in ("embedded", "embedded-qwen") for name in ("ar", "vanilla-sd")
    ]
    assert all(one.holds and one.identical == 1 and one.tokens_per_s > 0 for one in found)


@pytest.fixture(scope="module")
def captioner():
    few = {"models.device": "cpu", "models.dtype": "float32", "generate.max_new_tokens": 8}
    with Captioner.from_profile("ar", overrides=few) as found:
        yield found


def test_where_two_captions_part(captioner):
    clip = shipped()[0]
    ids = list(captioner.caption(clip).token_ids)
    assert gap(captioner, clip, ids, ids) == 0
    assert gap(captioner, clip, ids, ids[:5]) == float("inf")
    wrong = [*ids[:5], ids[5] + 1, 7]
    assert gap(captioner, clip, ids, wrong) == gap(captioner, clip, wrong, ids) > EPSILON
    assert gap(captioner, clip, ids, [ids[0] + 1]) > EPSILON
