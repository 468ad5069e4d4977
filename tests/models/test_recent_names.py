"""Models that are named in late 2026, by what their configs say: supported, or refused with the nearest."""

import json

import pytest

from tests.models.test_published_configs import PUBLISHED
from vidspec.cli.checkpoint import inspect
from vidspec.errors import ModelError
from vidspec.models.known_pairs import known_pairs

#: ``XiaomiMiMo/MiMo-VL-7B-RL``, as its shapes are quoted on GitHub.
MIMO = {
    "model_type": "qwen2_5_vl",
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 151680,
    "rope_scaling": {"mrope_section": [16, 24, 24], "type": "default"},
    "vision_config": {"hidden_size": 1280, "intermediate_size": 3456, "out_hidden_size": 4096},
}
#: Marlin's own class is for its helpers; its weights are Qwen3.5's.
MARLIN = {
    **PUBLISHED["Qwen/Qwen3.5-0.8B"]["config"],
    "architectures": ["MarlinForConditionalGeneration"],
    "auto_map": {"AutoModelForCausalLM": "modeling_marlin.MarlinForConditionalGeneration"},
}
KEYE = {
    "model_type": "KeyeVL1_5",
    "architectures": ["KeyeVL1_5ForConditionalGeneration"],
    "auto_map": {"AutoConfig": "configuration_keye_vl_1_5.KeyeVL1_5Config"},
}


def written(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    ("config", "family"),
    [
        (MIMO, "qwen2_5_vl"),
        (MARLIN, "qwen3_5"),
        (PUBLISHED["Qwen/Qwen3-Omni-30B-A3B-Instruct"]["config"], "qwen3_omni_moe"),
        (PUBLISHED["allenai/Molmo2-4B"]["config"], "molmo2"),
        (PUBLISHED["openbmb/MiniCPM-V-4.6"]["config"], "minicpmv4_6"),
    ],
)
def test_supported_by_layout(tmp_path, config, family):
    found = inspect(written(tmp_path, config))
    assert found.family == family and found.parameters > 0


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (KEYE, "needs its own code, which is not run"),
        ({"model_type": "minicpmv4_7"}, "type minicpmv4_7 are not supported; nearest: minicpmv4_6; supported"),
    ],
)
def test_no_support(tmp_path, config, said):
    with pytest.raises(ModelError, match=said):
        inspect(written(tmp_path, config))


@pytest.mark.parametrize("text", ["llama", "qwen2_vl"])
def test_a_wrapper_with_anothers_type_is_refused_by_its_class(tmp_path, text):
    """Tarsier's configs say ``llava``; its tower's rows end in tokens that LLaVA has not, and Tarsier2 is Qwen2-VL."""
    config = {"model_type": "llava", "architectures": ["TarsierForConditionalGeneration"], "image_newline_idx": 32002}
    folder = written(tmp_path, {**config, "text_config": {"model_type": text}})
    with pytest.raises(ModelError, match="type TarsierForConditionalGeneration are not supported"):
        inspect(folder)


def test_names_in_the_table():
    listed = {pair.target.name: pair.target.family for pair in known_pairs()}
    assert listed["Qwen/Qwen3.8-27B"] == listed["Qwen/Qwen3.6-27B"] == listed["NemoStation/Marlin-2B"] == "qwen3_5"
    assert listed["XiaomiMiMo/MiMo-VL-7B-RL"] == "qwen2_5_vl" and "nvidia/Cosmos-Reason2-8B" in listed
