"""``speculators`` loads heads in its layout as they are written here, and computes what is read from them."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import dflash as heads
from tests.checkpoints.qwen import QWEN25, QwenKind, tokenizer

#: Of ``make .venv/peers/speculators/installed``.
PYTHON = Path(__file__).parents[2] / ".venv" / "peers" / "speculators" / "bin" / "python"
ROWS = 40
WINDOW = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 1000}
#: Type, keys of the config, Markov head, ids of its own output head.
KINDS = {
    "dflash": ("dflash", {}, None, None),
    "anchor": ("dflash", {"sample_from_anchor": True}, None, None),
    "causal": ("dflash", WINDOW, None, None),
    "non-causal": ("dflash", {**WINDOW, "sliding_window_non_causal": True}, None, None),
    "vanilla": ("dspark", {"markov_rank": 6}, "vanilla", None),
    "gated": ("dspark", {"markov_rank": 6, "markov_head_type": "gated"}, "gated", None),
    "rnn": ("dspark", {"markov_rank": 6, "markov_head_type": "rnn"}, "rnn", None),
    "rnn after the anchor": (
        "dspark",
        {"markov_rank": 6, "markov_head_type": "rnn", "sample_from_anchor": False},
        "rnn",
        None,
    ),
    "fewer ids": ("dspark", {"markov_rank": 6, "draft_vocab_size": 70}, "vanilla", 70),
}


def test_it_loads_what_is_written_and_computes_the_same(tmp_path):
    """Tensors are the file's, to the bit; logits and confidences those of ``tests/checkpoints/dflash.py``, to 1e-4."""
    if not PYTHON.exists():
        pytest.skip("speculators is not installed: make .venv/peers/speculators/installed")
    kind, rng, expected = QwenKind(QWEN25, tied=False), torch.Generator().manual_seed(3), {}
    vocabulary = len(tokenizer()) + kind.padding
    judge, table = (torch.randn(vocabulary, heads.HIDDEN, generator=rng) for _ in range(2))
    states = torch.randn(ROWS, len(heads.TAPS) * heads.HIDDEN, generator=rng)
    for name, (model, more, markov, drafted) in KINDS.items():
        weights, last, first = heads.tensors(), 7, int(not more.get("sample_from_anchor", model == "dspark"))
        if markov:
            weights |= heads.dspark_tensors(vocabulary, markov, drafted=drafted)
        folder = heads.save(tmp_path / name, heads.speculators_config(kind, model, dtype="float32", **more), weights)
        places = torch.arange(ROWS)
        logits, rows = heads.logits(
            weights, judge, table, states, places, last, ROWS, causal=(name == "causal",) * heads.BLOCKS
        )
        tokens, sure = [last] * heads.SIZE, None
        if markov:
            logits = rows @ weights["lm_head.weight"].double().T if drafted else logits
            chosen, sure, logits = heads.dspark_path(weights, markov, logits, rows, last, first)
            tokens = [last, *chosen][: heads.SIZE]
        expected[name] = logits[first if not markov else 0 :], sure, first
        given = {"states": states, "embedding": table, "judge": judge, "tokens": torch.tensor(tokens)}
        save_file(given, folder / "given.safetensors")
    script = Path(__file__).with_name("speculators_block.py")
    ran = subprocess.run(
        [str(PYTHON), str(script), *(str(tmp_path / name) for name in KINDS)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    for name, (logits, sure, first) in expected.items():
        made = load_file(tmp_path / name / "made.safetensors")
        assert float((made["logits"][first:] - logits).abs().max()) < 1e-4 * float(logits.abs().max()), name
        if sure is not None:
            assert made["sure"][first:].sigmoid().tolist() == pytest.approx(sure, abs=1e-5), name
