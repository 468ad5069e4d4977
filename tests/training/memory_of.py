"""Trains a head of random texts in a process of its own and prints the estimate of its memory, and what it took.

Arguments: hidden width, MLP width, ids. Both numbers are bytes; the libraries' own memory is not counted.
"""

import sys
import tempfile
from pathlib import Path

import torch

from vidspec.memory import release_memory, resident_memory
from vidspec.training.head import SharedWeights, TrainedBlocks
from vidspec.training.states import TextStates
from vidspec.training.steps import HeadTraining, TrainingLimits
from vidspec.training.train import training_bytes

WIDTH, TAPS, ROWS, TOKENS, BLOCKS = 32, 5, 200, 120, 2
torch.set_num_threads(1)


class RandomTexts:
    """Texts of random states; one for each key."""

    def __init__(self, hidden: int, ids: int) -> None:
        self.hidden, self.ids = hidden, ids

    def read(self, key: str) -> TextStates:
        rng, rows = torch.Generator().manual_seed(int(key)), ROWS + TOKENS - 1
        tokens = tuple(torch.randint(self.ids, (TOKENS,), generator=rng).tolist())
        states, finals = (torch.randn(rows, width, generator=rng).half() for width in (TAPS * self.hidden, self.hidden))
        return TextStates(states, torch.arange(rows)[None].float(), float(ROWS), tokens, finals[1 - TOKENS :])


def trained(hidden: int, inner: int, ids: int) -> int:
    """Train a head of three steps with texts of random states, and return the estimate of its bytes."""
    config = {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "transformer_layer_config": {
            "model_type": "qwen3",
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_attention_heads": hidden // WIDTH,
            "num_key_value_heads": 2,
            "head_dim": WIDTH,
            "num_hidden_layers": BLOCKS,
            "rms_norm_eps": 1e-6,
            "vocab_size": ids,
            "layer_types": ["sliding_attention"] * BLOCKS,
            "sliding_window": 4096,
            "use_sliding_window": True,
        },
        "draft_vocab_size": ids,
        "block_size": 16,
        "aux_hidden_state_layer_ids": [1, 2, 3, 4, 5],
        "mask_token_id": 1,
        "sample_from_anchor": True,
        "sliding_window_non_causal": False,
        "markov_rank": 64,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    shapes = {"fc": (hidden, TAPS * hidden), "markov_head.markov_w1": (ids, 64), "markov_head.markov_w2": (ids, 64)}
    shapes |= {"hidden_norm": (hidden,), "norm": (hidden,), "confidence_head.proj": (1, hidden + 64)}
    for index in range(BLOCKS):
        of = f"layers.{index}"
        shapes |= {f"{of}.{norm}": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{of}.self_attn.{norm}": (WIDTH,) for norm in ("q_norm", "k_norm")}
        shapes |= {f"{of}.self_attn.{name}": (2 * WIDTH, hidden) for name in ("k_proj", "v_proj")}
        shapes |= {f"{of}.self_attn.{name}": (hidden, hidden) for name in ("q_proj", "o_proj")}
        shapes |= {f"{of}.mlp.{name}": (inner, hidden) for name in ("gate_proj", "up_proj")}
        shapes |= {f"{of}.mlp.down_proj": (hidden, inner)}
    rng = torch.Generator().manual_seed(0)
    tensors = {
        f"{name}.weight": torch.ones(shape) if len(shape) == 1 else 0.02 * torch.randn(shape, generator=rng)
        for name, shape in shapes.items()
    }
    table = torch.randn(ids, hidden, generator=rng)
    shared = SharedWeights(table, table, ids)
    head, texts = TrainedBlocks(config, tensors, shared, 1), RandomTexts(hidden, ids)
    numbers = sum(tensor.numel() for tensor in tensors.values())
    del tensors
    with tempfile.TemporaryDirectory() as folder:
        run = HeadTraining(head, texts, ["1", "2", "3"], ["4"], Path(folder), limits=TrainingLimits(steps=3))
        assert [*run.run()][-1].step == 3
    return training_bytes(numbers, table.nbytes, ids, hidden, head.heads, ROWS + TOKENS, gpu=False)


if __name__ == "__main__":
    trained(64, 128, 100)  # what the libraries allocate once
    release_memory()
    before = resident_memory()
    assert before is not None
    estimate = trained(*map(int, sys.argv[1:]))
    status = Path("/proc/self/status").read_text(encoding="ascii")  # the peak of getrusage has the parent's in it
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    print(estimate, 1024 * int(peak) - before)
