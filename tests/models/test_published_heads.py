"""Published configs of heads, as their repositories show them: which are read. Tensors have shapes, no numbers."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vidspec.engine.decoder import sliding_windows
from vidspec.errors import ModelError
from vidspec.models import checkpoint_config, dflash_checkpoint, eagle3
from vidspec.models.placement import resolve_placement

CONFIGS = json.loads(Path(__file__).with_name("published_heads.json").read_text(encoding="utf-8"))
META = torch.device("meta")


def tensors(config):
    """Tensors of such a head in the published layout; the numbers of ``d2t`` are a draft vocabulary's."""
    hidden, inner, drafted = (config[key] for key in ("hidden_size", "intermediate_size", "draft_vocab_size"))
    heads, kv_heads = (config["head_dim"] * config[f"num_{kind}_heads"] for kind in ("attention", "key_value"))
    shapes = {"fc": (hidden, 3 * hidden), "norm": (hidden,), "lm_head": (drafted, hidden)}
    shapes |= {f"midlayer.{name}": (hidden,) for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}
    shapes |= {"midlayer.self_attn.q_proj": (heads, 2 * hidden), "midlayer.self_attn.o_proj": (hidden, heads)}
    shapes |= {f"midlayer.self_attn.{name}_proj": (kv_heads, 2 * hidden) for name in "kv"}
    shapes |= {f"midlayer.mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")}
    shapes["midlayer.mlp.down_proj"] = hidden, inner
    made = {f"{name}.weight": torch.empty(shape, device=META) for name, shape in shapes.items()}
    return made | {"d2t": torch.zeros(drafted, dtype=torch.long)}


@pytest.mark.parametrize("name", CONFIGS)
def test_published_configs_are_read(name):
    given = CONFIGS[name]
    eagle3.check_keys(name, given)
    target = SimpleNamespace(name="target", layers=36, vocabulary=151_669, device=META, dtype=torch.bfloat16)
    target.embed = lambda ids: torch.empty(*ids.shape, given["hidden_size"], device=META)
    head = eagle3.Eagle3Head(name, eagle3.head_config(dict(given)), tensors(given), target, META)
    assert head.blocks == (2, 18, 33) and head.vocabulary == 32_000
    assert head.decoder.axes == 3  # numbered as the target numbers them
    assert (head.decoder.heads, head.decoder.width) == (32, 128) and head.decoder.windows is None


#: Configs of the published DFlash heads of Qwen3.6-27B and Qwen3.6-35B-A3B.
BLOCK_HEADS = {
    "dense": {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": 16,
        "num_target_layers": 64,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 5,
        "layer_types": [*["sliding_attention"] * 4, "full_attention"],
        "sliding_window": 2048,
        "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 16, 31, 46, 61]},
    },
    "experts": {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_target_layers": 40,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 6,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"],
        "sliding_window": 4096,
        "dflash_config": {
            "block_size": 16,
            "mask_token_id": 248077,
            "target_layer_ids": [1, 6, 11, 16, 22, 27, 32, 37],
        },
    },
}


@pytest.mark.parametrize("name", BLOCK_HEADS)
def test_published_block_heads_are_read(name):
    """Keys of the head at either place; sliding-window blocks see no later rows."""
    same = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 248_320}
    given = BLOCK_HEADS[name] | same | {"hidden_act": "silu", "rms_norm_eps": 1e-6, "use_sliding_window": True}
    config, settings = dflash_checkpoint.block_config(name, given | {"rope_theta": 10_000_000, "attention_bias": False})
    last = given["num_hidden_layers"] - 1
    assert (settings.size, settings.both_ways, settings.soft_cap) == (16, frozenset({last}), None)
    assert settings.taps == tuple(given["dflash_config"]["target_layer_ids"])
    assert sliding_windows(config) == (*[given["sliding_window"]] * last, None)


def test_assistants_of_gemma_4_are_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma4_assistant"}), encoding="utf-8")
    message = "is an assistant of Gemma 4, which drafts from the keys and values of its target: not supported"
    with pytest.raises(ModelError, match=message):
        checkpoint_config.read_config(str(tmp_path))
    with pytest.raises(ModelError, match=message):
        eagle3.load_eagle3(str(tmp_path), None, resolve_placement("cpu", "float32"))
