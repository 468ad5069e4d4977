"""``speculators`` loads heads in its layout as they are written here and by training, and computes the same."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import checkpoint
from tests.checkpoints import dflash as heads
from tests.checkpoints.qwen import QWEN25, QwenKind, tokenizer
from vidspec.models.loading import load_model
from vidspec.models.placement import resolve_placement
from vidspec.training.head import SharedWeights, TrainedBlocks
from vidspec.training.new_head import BLOCK
from vidspec.training.states import TextStates

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


pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="speculators is not installed: make .venv/peers/speculators/installed"
)


def check(folders, expected):
    """Compare logits (n, V) to 1e-4 of the largest, and confidences, of each head's rows from ``first`` on."""
    script = Path(__file__).with_name("speculators_block.py")
    ran = subprocess.run(
        [str(PYTHON), str(script), *map(str, folders)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    for folder, (logits, sure, first) in zip(folders, expected, strict=True):
        made, name = load_file(folder / "made.safetensors"), folder.name
        found = made["logits"][first:, : logits.shape[1]]
        assert float((found - logits).abs().max()) < 1e-4 * float(logits.abs().max()), name
        if sure is not None:
            assert made["sure"][first:].sigmoid().tolist() == pytest.approx(sure, abs=1e-5), name


def test_it_loads_what_is_written_and_computes_the_same(tmp_path):
    """Tensors are the file's, to the bit; logits and confidences those of ``tests/checkpoints/dflash.py``."""
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
    check([tmp_path / name for name in KINDS], expected.values())


@torch.no_grad()
def test_a_head_that_training_writes_computes_the_same(tmp_path, monkeypatch):
    """Embedding and output head are loaded from the verifier that the head names, in any working directory."""
    source = checkpoint(QwenKind(QWEN25, tied=False))
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir(source.parent)
        target = load_model(f"./{source.name}", resolve_placement("cpu", "float32"))
        head = TrainedBlocks.new(target, SharedWeights.of(target), 2, 0)
    rng = torch.Generator().manual_seed(3)
    for tensor in head.parts:
        if not tensor.any():  # parts that begin without effect
            tensor.normal_(generator=rng)
    head.save(tmp_path, head.tensors)
    tokens = torch.randint(target.vocabulary, (BLOCK + 1,), generator=rng)
    rows, width = ROWS + BLOCK, len(head.taps) * head.decoder.hidden
    states = torch.randn(rows, width, generator=rng)
    text = TextStates(states, torch.arange(rows)[None], ROWS, tuple(tokens.tolist()), torch.empty(0))
    scores, _, sure = head([text], torch.tensor([[0]]), BLOCK)
    save_file({"states": states[:ROWS].clone(), "tokens": tokens[:BLOCK].clone()}, tmp_path / "given.safetensors")
    check([tmp_path], [(scores[0, 0], sure[0, 0].tolist(), 0)])
