"""Published configs of heads, as their repositories show them: which are read. Tensors have shapes, no numbers."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vidspec.errors import ModelError
from vidspec.models import checkpoint_config, eagle3
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


def test_assistants_of_gemma_4_are_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma4_assistant"}), encoding="utf-8")
    message = "is an assistant of Gemma 4, which drafts from the keys and values of its target: not supported"
    with pytest.raises(ModelError, match=message):
        checkpoint_config.read_config(str(tmp_path))
    with pytest.raises(ModelError, match=message):
        eagle3.load_eagle3(str(tmp_path), None, resolve_placement("cpu", "float32"))
